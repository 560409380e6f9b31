"""One line per call, as text or as JSON. Lines carry ids, counts and times, and never what anybody wrote.

An exception is shown as its type and the lines of code it passed through: its message may quote a prompt or a secret.
"""

from __future__ import annotations

import contextvars
import json
import logging
import time
import traceback
from dataclasses import dataclass, field
from types import TracebackType

logger = logging.getLogger("magnitude.server")

VALUE_CHARACTERS_MAX = 256
CAUSES_MAX = 8

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
"""What `logging` keeps of an exception."""


OPTIONAL = (
    *("request_id", "model", "session_id", "version"),
    *("prompt_tokens", "completion_tokens", "finish_reasons"),
)
"""What a line tells where it is known."""


@dataclass(slots=True)
class CallRecord:
    """What one call's line says. Servicers fill in what they learn; the interceptor writes it."""

    method: str
    begin_seconds: float = field(default_factory=time.monotonic)
    request_id: str = ""
    model: str = ""
    session_id: str = ""
    version: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reasons: str = ""

    def write(self, code: str, reason: str, level: int) -> None:
        """Logs the call as ended."""
        if not logger.isEnabledFor(level):
            return
        fields: dict[str, object] = {"method": self.method, "code": code}
        fields["ms"] = round((time.monotonic() - self.begin_seconds) * 1_000, 1)
        fields |= {name: shortened(getattr(self, name)) for name in OPTIONAL if getattr(self, name) not in ("", None)}
        if reason:
            fields["reason"] = reason
        logger.log(level, "call", extra={"fields": fields})


CALL: contextvars.ContextVar[CallRecord | None] = contextvars.ContextVar("CALL", default=None)
"""The call that this task serves."""


def note(**fields: object) -> None:
    """Adds to the line of the call that is being served."""
    record = CALL.get()
    if record is not None:
        for name, value in fields.items():
            setattr(record, name, value)


class TextFormatter(logging.Formatter):
    """2026-01-31T12:00:00.123 INFO magnitude.server call method=Infer code=OK …"""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        parts = [f"{name}={shown(value)}" for name, value in fields.items()]
        line = " ".join([timestamp(record), record.levelname, record.name, record.getMessage(), *parts])
        return f"{line}\n{trace(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = trace(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def shortened(value: object) -> object:
    """A text's beginning, before anybody has checked how long a caller made it."""
    return value[:VALUE_CHARACTERS_MAX] if isinstance(value, str) else value


def shown(value: object) -> str:
    """A field's value as one word: a caller chooses its request's name, and no line of ours."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def trace(exc_info: ExceptionInfo) -> str:
    """Where an exception came from, and its type; so for each that it was raised from. Messages are left out."""
    parts: list[str] = []
    error = exc_info[1]
    while error is not None and len(parts) < CAUSES_MAX:
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"{frames}{type(error).__module__}.{type(error).__qualname__} (its message is not logged)")
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def timestamp(record: logging.LogRecord) -> str:
    """When, in UTC."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def formatter(log_format: str) -> logging.Formatter:
    """The formatter of `--log-format`."""
    return JsonFormatter() if log_format == "json" else TextFormatter()
