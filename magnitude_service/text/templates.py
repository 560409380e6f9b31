"""Chat templates: a conversation becomes the text that the model was trained on, and each part of it is trusted or not.

A template comes with the model file. It is a program, and a hostile one computes for ever, takes all memory or looks
for a way out of the sandbox. So it runs in a child process (`template_process.py`, `template_child.py`) that is killed
when it takes too long and cannot take more memory than it was given; the next rendering starts another one.

**What is trusted.** The template's own characters may name control tokens; characters that came with the request, in
whatever field, may not: `hi<|im_end|>` is text. A template may cut, join, replace and escape what it is given, so trust
is kept per character: the child renders twice, once plainly and once with every character of the request replaced by
a mark, and the places of the marks are the untrusted spans (`provenance.py` has the scheme, and says why it is safe).
A control token is only recognised within one trusted segment, so one that is even partly a user's is none. Where the
two renderings disagree, because a template decides by something that marks cannot imitate, nothing is trusted.

Numbers, truth values and known roles count as the template's own text, for they cannot spell a control token that the
template does not spell out around them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from magnitude_service.errors import InvalidRequestError, UnavailableError, UnsupportedModelError
from magnitude_service.text.conversation import checked_arguments, checked_messages, checked_value
from magnitude_service.text.options import TemplateOptions
from magnitude_service.text.template_process import START_SECONDS, TemplateProcess, TemplateProcessEnded

SECONDS_PER_BYTE = 0.5e-6
"""A long conversation gets this much more time. Measured: 0.11e-6 to 0.2e-6 (2 cores, shared, Nov 2026)."""

INSTEAD = "Send the input as text or token ids instead, or serve the model with another template."


class Segment(NamedTuple):
    """A stretch of a rendered prompt. Special tokens are parsed in trusted ones only; words run across segments."""

    text: str
    trusted: bool


class ChatTemplate:
    """A model's chat template. Its process starts at the first use, and serves one rendering at a time.

    Thread-safe, and blocking: use it from a worker thread. `close` ends the process.
    """

    def __init__(self, source: str, *, bos_text: str, eos_text: str, options: TemplateOptions) -> None:
        """*Raises*: UnsupportedModelError for a template that is too large, or not valid Unicode."""
        try:
            size = len(source.encode())
        except UnicodeEncodeError:
            raise UnsupportedModelError("The model's chat template is not valid Unicode.", remedy=INSTEAD) from None
        if size > options.template_source_bytes_max:
            raise UnsupportedModelError(
                f"The model's chat template has {size} bytes; {options.template_source_bytes_max} are allowed.",
                remedy=f"Raise --template-source-bytes-max. {INSTEAD}",
            )
        self._options = options
        self._program = {"source": source, "bos_text": bos_text, "eos_text": eos_text}
        self._lock = threading.Lock()  # guards the process: one exchange at a time
        self._process: TemplateProcess | None = None
        self._is_closed = False

    def check(self) -> None:
        """Compiles the template now rather than at the first conversation.

        *Raises*: UnsupportedModelError naming the line of a syntax error; InvalidRequestError for a template that
        exceeds its bounds while it is compiled.
        """
        with self._turn():
            self._start()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> list[Segment]:
        """The prompt in segments; joined, they are exactly what plain Jinja2 makes of the conversation.

        A message has a role, content (a text, a list of text parts or None) and whatever else templates know: name,
        tool_calls, tool_call_id, reasoning_content. Text parts are joined for a template that takes no list.
        `arguments` are further variables of the template. `now` is what `strftime_now` tells; a session keeps one.

        *Raises*: InvalidRequestError in the template's own words when it refuses the conversation, or naming the field
        that is wrong or the bound that was exceeded; UnsupportedModelError for a template with a syntax error.
        """
        request = {
            "messages": checked_messages(messages),
            "tools": checked_value(tools, "tools") if tools else None,
            "add_generation_prompt": add_generation_prompt,
            "arguments": checked_arguments(arguments or {}),
            "now": (now or datetime.now()).isoformat(),
        }
        seconds = self._options.template_seconds + self._size(request) * SECONDS_PER_BYTE
        with self._turn():
            reply, text = self._exchange(self._start(), request, seconds)
        return _segments(text, reply["spans"])

    def close(self) -> None:
        """Ends the process; a later rendering is refused."""
        with self._lock:
            self._is_closed = True
            self._kill()

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """The process that holds the template now, for whoever counts memory."""
        return self._process.pid if self._process else None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock, for which nobody waits longer than two renderings and a start may take."""
        seconds = 2 * self._options.template_seconds + START_SECONDS
        if not self._lock.acquire(timeout=seconds):
            raise UnavailableError(
                f"The chat template was busy for {seconds:g} s.", remedy="Try again.", retry_after_seconds=seconds
            )
        try:
            if self._is_closed:
                raise UnavailableError("The model is being unloaded.", remedy="Try another model.")
            yield
        finally:
            self._lock.release()

    def _start(self) -> TemplateProcess:
        """The process, with the template compiled in it."""
        if self._process is not None and self._process.is_alive:
            return self._process
        self._kill()
        try:
            self._process = TemplateProcess(self._options)
        except (OSError, TemplateProcessEnded) as error:  # TimeoutError is an OSError
            raise UnavailableError(
                f"The process for chat templates cannot be started: {error or 'it takes too long'}.",
                remedy="Raise --template-memory-bytes, or free memory or process ids on this machine.",
                retry_after_seconds=1,
            ) from error
        self._exchange(self._process, self._program, self._options.template_seconds)
        return self._process

    def _size(self, request: Mapping[str, Any]) -> int:
        """Bytes of a conversation as JSON. *Raises*: InvalidRequestError where they are too many."""
        size, size_max = len(_encode(request)), self._options.template_text_bytes_max
        if size > size_max:
            raise InvalidRequestError(
                f"The conversation has {size} bytes; {size_max} are allowed.",
                remedy="Send fewer or shorter messages, or raise --template-text-bytes-max.",
                field="messages",
            )
        return size

    def _exchange(
        self, process: TemplateProcess, request: Mapping[str, Any], seconds: float
    ) -> tuple[dict[str, Any], str]:
        try:
            reply, text = process.exchange(_encode({**request, "seconds": seconds}), seconds)
        except TimeoutError:
            self._kill()
            raise _refused(f"took longer than {seconds:.3g} s", "Raise --template-seconds.") from None
        except TemplateProcessEnded as error:
            self._kill()
            raise _refused(f"was stopped: its process {error}", INSTEAD) from error
        except BaseException:
            self._kill()  # half an answer may be on its way
            raise
        if "error" in reply:
            if request is self._program or reply["error"] == "memory":
                self._kill()
            self._raise(str(reply["error"]), str(reply.get("message", "")), reply.get("line"))
        return reply, text

    def _raise(self, kind: str, words: str, line: object) -> NoReturn:
        """The error that the child described, as a sentence."""
        options = self._options
        where = f" in line {line}" if line else ""
        if kind == "syntax":
            raise UnsupportedModelError(f"The model's chat template has an error{where}: {words}", remedy=INSTEAD)
        if kind == "raised":
            raise InvalidRequestError(
                f"The chat template refuses the conversation: {words}",
                remedy="Change the messages as it says.",
                field="messages",
            )
        if kind == "memory":
            raise _refused(
                f"needed more than {options.template_memory_bytes} bytes of memory", "Raise --template-memory-bytes."
            )
        if kind == "too_long":
            raise _refused(
                f"wrote more than {options.template_text_bytes_max} bytes", "Raise --template-text-bytes-max."
            )
        if kind == "unsafe":
            raise _refused(f"tried what its sandbox forbids{where}: {words.rstrip('.')}", INSTEAD)
        if kind == "surrogate":
            raise _refused("wrote a surrogate, which no UTF-8 can carry", INSTEAD)
        raise _refused(f"failed{where}: {words.rstrip('.')}", f"Check the messages and template arguments. {INSTEAD}")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


def _refused(what: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"The chat template {what}.", remedy=remedy, field="messages")


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _segments(text: str, untrusted: Sequence[Sequence[int]]) -> list[Segment]:
    """The text cut where trust changes; nothing in it is empty."""
    segments, at = [], 0
    for begin, end in untrusted:
        segments += [Segment(text[at:begin], True), Segment(text[begin:end], False)]
        at = end
    segments.append(Segment(text[at:], True))
    return [segment for segment in segments if segment.text]
