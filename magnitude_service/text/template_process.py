"""Starts the child process of `template_child.py`, talks to it against a deadline, and kills it.

The child gets no environment, no open file but its two pipes, a session of its own and a folder of no interest. It
imports Jinja2 and four modules of ours: neither this process nor `magnitude_service/__init__` is in it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from magnitude_service.errors import UnavailableError
from magnitude_service.text.options import TemplateOptions

START_SECONDS = 20.0
"""A process that needs longer than this to import Jinja2 will not come. Measured: 0.07 s (2 cores, Nov 2026)."""

JSON_BYTES_MAX = 8 << 20
CHUNK_BYTES = 1 << 20

BOOT = """
import sys, types
package, memory_bytes, text_bytes_max, *folders = sys.argv[1:]
sys.path += folders
for name, folder in ("magnitude_service", package), ("magnitude_service.text", package + "/text"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from magnitude_service.text import template_child
print("ready", flush=True)
template_child.main(int(memory_bytes), int(text_bytes_max))
"""
"""What the child runs. Our packages are bare there, so that importing one module of them runs no `__init__`."""

READY = b"ready\n"


class TemplateProcessEnded(Exception):
    """The child ended, or broke the protocol, instead of answering; the message says how."""


class TemplateProcess:
    """A running child. Not thread-safe.

    *Raises*, from every exchange: TimeoutError when the time is over, TemplateProcessEnded when the child is. After
    either the process is of no more use: `kill` it.
    """

    def __init__(self, options: TemplateOptions) -> None:
        bounds = (options.template_memory_bytes, options.template_text_bytes_max)
        package = Path(__file__).resolve().parent.parent
        self._text_bytes_max = options.template_text_bytes_max
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT, str(package), *map(str, bounds), *_import_folders()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={},
            start_new_session=True,
        )
        self._to_child, self._from_child = _pipe(self._process.stdin), _pipe(self._process.stdout)
        try:
            self._is_ready(time.monotonic() + START_SECONDS)
        except BaseException:
            self.kill()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the child still runs; it may have ended between two exchanges."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def exchange(self, request: bytes, seconds: float) -> tuple[dict[str, Any], str]:
        """Sends one frame, and returns what the child answers: its JSON and its text."""
        deadline = time.monotonic() + seconds
        self._write(len(request).to_bytes(8) + request, deadline)
        try:
            reply = json.loads(self._read_frame(JSON_BYTES_MAX, deadline))
            text = self._read_frame(self._text_bytes_max, deadline).decode()
        except (ValueError, RecursionError) as error:
            raise TemplateProcessEnded(f"answered nonsense ({error})") from error
        if not isinstance(reply, dict) or not ("error" in reply or _are_spans(reply.get("spans"), len(text))):
            raise TemplateProcessEnded("answered nonsense")
        return reply, text

    def kill(self) -> None:
        """Ends the child, and whatever it may have started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._to_child.close()
        self._from_child.close()

    def _is_ready(self, deadline: float) -> None:
        if self._read(len(READY), deadline) != READY:
            raise TemplateProcessEnded("did not start")

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            _wait(self._to_child, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._to_child.fileno(), view[:CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise self._ended() from error

    def _read_frame(self, bytes_max: int, deadline: float) -> bytes:
        length = int.from_bytes(self._read(8, deadline))
        if length > bytes_max:
            raise TemplateProcessEnded(f"answered with {length} bytes")
        return self._read(length, deadline)

    def _read(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            _wait(self._from_child, select.POLLIN, deadline)
            try:
                part = os.read(self._from_child.fileno(), min(length - len(data), CHUNK_BYTES))
            except BlockingIOError:
                continue
            if not part:
                raise self._ended()
            data += part
        return bytes(data)

    def _ended(self) -> TemplateProcessEnded:
        status = self._process.wait()
        name = signal.Signals(-status).name if -status in signal.valid_signals() else f"exit status {status}"
        return TemplateProcessEnded(f"ended with {name}")


def _are_spans(spans: object, length: int) -> bool:
    """Whether this is a list of [begin, end] in order, none empty, within a text of this length."""
    if not isinstance(spans, list) or not all(isinstance(span, list) and len(span) == 2 for span in spans):
        return False
    cuts = [cut for span in spans for cut in span]
    return all(type(cut) is int for cut in cuts) and all(a < b for a, b in pairwise([-1, *cuts, length + 1]))


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    return stream


def _wait(stream: IO[bytes], event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(stream, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError


def _import_folders() -> list[str]:
    """Where Jinja2 and what it needs are installed; found without importing them."""
    folders = []
    for name in ("jinja2", "markupsafe"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise UnavailableError(f"The package {name} is not installed.", remedy=f"Install it: pip install {name}.")
        folders.append(str(Path(spec.origin).parent.parent))
    return folders
