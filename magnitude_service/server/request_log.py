"""One line per call, as text or as JSON. Lines carry ids, counts and times, and never what anybody wrote."""

from __future__ import annotations

import contextvars
import json
import logging
import time
from dataclasses import dataclass, field

logger = logging.getLogger("magnitude.server")


@dataclass(slots=True)
class CallRecord:
    """What one call's line says. Servicers fill in what they learn; the interceptor writes it."""

    method: str
    begin_seconds: float = field(default_factory=time.monotonic)
    request_id: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reasons: str = ""

    def write(self, code: str, reason: str, level: int) -> None:
        """Logs the call as ended."""
        if not logger.isEnabledFor(level):
            return
        fields: dict[str, object] = {"method": self.method, "code": code}
        fields["ms"] = round((time.monotonic() - self.begin_seconds) * 1_000, 1)
        optional = ("request_id", "model", "prompt_tokens", "completion_tokens", "finish_reasons")
        fields |= {name: getattr(self, name) for name in optional if getattr(self, name) not in ("", None)}
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
        parts = [f"{name}={value}" for name, value in fields.items()]
        line = " ".join([timestamp(record), record.levelname, record.name, record.getMessage(), *parts])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


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
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def timestamp(record: logging.LogRecord) -> str:
    """When, in UTC."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def formatter(log_format: str) -> logging.Formatter:
    """The formatter of `--log-format`."""
    return JsonFormatter() if log_format == "json" else TextFormatter()
