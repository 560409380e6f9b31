"""The child process in which chat templates run. `templates.py` starts it and says what a template may do.

A frame is its length (8 bytes, big-endian) and its body.

    parent -> child    one frame of JSON: first {source, …, seconds}, then one conversation each time
    child -> parent    two frames: JSON {"spans": [[begin, end], …]} or {"error": kind, "message", "line"}; the text

A conversation is rendered twice, once as it is and once marked (`provenance.py`): the first gives the text, the second
says which characters of it come from the request. Where the two disagree, nothing of the text is trusted.

The kernel ends this process when it takes too long, whatever the interpreter is doing (`setitimer`, RLIMIT_CPU), and
end-of-file on the input ends it when the parent is gone.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, BinaryIO

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from magnitude_service.text.provenance import (
    forget_unassigned,
    marked,
    plain,
    untrusted_spans,
)
from magnitude_service.text.template_environment import TemplateRaised, environment, revealing, shadow_environment

TRUSTED_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "environment"})
"""Roles that a template may build control tokens of (`'<|' + message.role + '|>'`); any other is a user's text."""

SPANS_MAX = 1 << 17
"""A text with more changes between template and request is not trusted at all."""

PROBE = "magnitude-probe"
OPEN_FILES_MAX = 8
ERROR_CHARACTERS_MAX = 1_000
LATE = 1.0
"""Seconds after the parent's own deadline when the kernel ends this process: it matters only if the parent is gone."""


class TooLong(Exception):
    """The rendered text exceeds its bound."""


class Conversations:
    """A compiled template, and what it wants to be given."""

    def __init__(self, source: str, bos_text: str, eos_text: str, text_bytes_max: int) -> None:
        self._template = environment().from_string(source)
        self._shadow = shadow_environment().from_string(source)
        self._special = {"bos_token": bos_text, "eos_token": eos_text}
        self._text_bytes_max = text_bytes_max
        self._takes_parts = self._shows([{"type": "text", "text": PROBE}])
        self._takes_text = self._shows(PROBE) or not self._takes_parts
        self._takes_argument_objects: bool | None = None

    def render(self, request: Mapping[str, Any]) -> tuple[bytes, list[tuple[int, int]]]:
        """The text of one conversation in UTF-8, and the spans of its characters that come from the request."""
        forget_unassigned()
        known = {"add_generation_prompt": request["add_generation_prompt"]}
        messages = [self._wanted(message) for message in request["messages"]]
        given = {"tools": request["tools"], "documents": None, **request["arguments"]}
        text = self._run(self._template, {**given, **known, "messages": messages}, request["now"])
        encoded = text.encode()
        if len(encoded) > self._text_bytes_max:
            raise TooLong
        everything = [(0, len(text))]
        try:
            marks = {**_marked_names(given), **known, "messages": _marked_messages(messages)}
            shadow = self._run(self._shadow, marks, request["now"])
            spans = untrusted_spans(shadow) if plain(shadow) == text else everything
        except (MemoryError, TooLong):
            raise
        except Exception:  # a decision of the template fell otherwise because of the marks
            spans = everything
        return encoded, spans if len(spans) <= SPANS_MAX else everything

    def _run(self, template: Template, variables: Mapping[str, Any], now: str) -> str:
        """The rendered text, given up as soon as it is too long."""
        clock: Callable[[str], str] = datetime.fromisoformat(now).strftime
        strftime_now = revealing(clock) if template is self._shadow else clock
        context = template.new_context({**self._special, **variables, "strftime_now": strftime_now})
        pieces, left = [], self._text_bytes_max
        for piece in template.root_render_func(context):
            left -= len(piece)
            if left < 0:
                raise TooLong
            pieces.append(piece)
        return "".join(pieces)

    def _wanted(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message in the form that this template was written for."""
        wanted = dict(message)
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            wanted["content"] = ""
        elif isinstance(content, list) and not self._takes_parts:
            wanted["content"] = "".join(part["text"] for part in content)
        elif isinstance(content, str) and not self._takes_text:
            wanted["content"] = [{"type": "text", "text": content}]
        if message.get("tool_calls"):
            wanted["tool_calls"] = [self._wanted_call(call) for call in message["tool_calls"]]
        return wanted

    def _wanted_call(self, call: Any) -> Any:
        """The call with its arguments as an object, or as JSON where the template joins them to a text."""
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or "arguments" not in function:
            return call
        arguments = function["arguments"]
        if self._takes_argument_objects is None:
            self._takes_argument_objects = self._shows_argument_objects()
        if isinstance(arguments, str) and self._takes_argument_objects:
            arguments = _parsed_object(arguments)
        elif not isinstance(arguments, str) and not self._takes_argument_objects:
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {**function, "arguments": arguments}
        return {**call, "function": function} if "function" in call else function

    def _shows(self, content: object) -> bool:
        """Whether the template prints this form of a message's content, and prints only the words of it."""
        text = self._probed([{"role": "user", "content": content}])
        return text is not None and PROBE in text and "'type'" not in text and '"type"' not in text

    def _shows_argument_objects(self) -> bool:
        function = {"name": "probe", "arguments": {PROBE: 1}}
        call = {"type": "function", "id": "probe0000", "function": function}
        conversation: list[dict[str, Any]] = [
            {"role": "user", "content": PROBE},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        text = self._probed(conversation)
        return text is not None and f"{{'{PROBE}'" not in text

    def _probed(self, messages: list[dict[str, Any]]) -> str | None:
        variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return self._run(self._template, variables, "2026-01-01T00:00:00")
        except (MemoryError, TooLong):
            raise
        except Exception:
            return None


def _parsed_object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _marked_names(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Values are marked; the names of variables must stay what a template calls them."""
    return {name: marked(value) for name, value in variables.items()}


def _marked_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    trusted = [{"role": role} if (role := message.get("role")) in TRUSTED_ROLES else {} for message in messages]
    return [{**marked(message), **role} for message, role in zip(messages, trusted, strict=True)]


def main(memory_bytes: int, text_bytes_max: int) -> None:
    """Serves one template until the input ends."""
    _limit(memory_bytes)
    conversations = None
    while True:
        reply: dict[str, Any] = {"spans": []}
        text = b""
        try:
            request = _receive(sys.stdin.buffer)
            if request is None:
                return
            _start_clock(request.pop("seconds") + LATE)
            if conversations is None:
                conversations = Conversations(**request, text_bytes_max=text_bytes_max)
            else:
                text, reply["spans"] = conversations.render(request)
        except Exception as error:
            reply = _described(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for body in (json.dumps(reply).encode(), text):
            sys.stdout.buffer.write(len(body).to_bytes(8) + body)
        sys.stdout.buffer.flush()


def _limit(memory_bytes: int) -> None:
    """No file is opened, written or dumped, no process started, no memory taken beyond the bound."""
    bounds = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES_MAX,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for limit, bound in bounds.items():
        try:
            resource.setrlimit(limit, (bound, bound))
        except (ValueError, OSError):
            if sys.platform == "linux":  # macOS knows some of these by name only
                raise


def _start_clock(seconds: float) -> None:
    """From now on the kernel ends this process after so many seconds, of the clock or of its own computing."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _described(error: Exception) -> dict[str, Any]:
    """What went wrong, in a few words for the parent to build a sentence of."""
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (TemplateRaised, "raised"),
        (TemplateSyntaxError, "syntax"),
        (SecurityError, "unsafe"),
        (MemoryError, "memory"),
        (TooLong, "too_long"),
        (UnicodeEncodeError, "surrogate"),
    )
    kind = next((kind for known, kind in kinds if isinstance(error, known)), "failed")
    words = str(error.message if isinstance(error, TemplateError) else error)
    line = error.lineno if isinstance(error, TemplateSyntaxError) else _line(error.__traceback__)
    if kind == "failed" and not isinstance(error, TemplateError):
        words = f"{type(error).__name__}: {words}"
    return {"error": kind, "message": words[:ERROR_CHARACTERS_MAX], "line": line}


def _line(traceback: TracebackType | None) -> int | None:
    """The template's line where it was raised; Jinja2 keeps the table that leads from compiled lines to those."""
    line = None
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _receive(stream: BinaryIO) -> Any:
    """The next frame, or None at the end of the input."""
    length = stream.read(8)
    if len(length) < 8:
        return None
    return json.loads(stream.read(int.from_bytes(length)))
