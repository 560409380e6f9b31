"""Lines of the log, as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from magnitude_service.server.request_log import VALUE_CHARACTERS_MAX, CallRecord, formatter


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("magnitude.server", logging.INFO, __file__, 1, "call", (), None)
    made.created, made.msecs = 0.25, 250.0
    made.__dict__.update(extra)
    return made


FIELDS = {"method": "Infer", "code": "OK", "ms": 1.5}


def test_a_text_line_is_read_by_people_and_by_grep() -> None:
    line = formatter("text").format(record(fields=FIELDS))
    assert line == "1970-01-01T00:00:00.250Z INFO magnitude.server call method=Infer code=OK ms=1.5"


def test_a_json_line_is_one_object_even_with_a_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        line = formatter("json").format(record(fields=FIELDS, exc_info=sys.exc_info()))
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["time"], entry["level"], entry["method"]) == ("1970-01-01T00:00:00.250Z", "INFO", "Infer")
    assert "ValueError" in entry["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_shown_by_type_and_place_and_its_message_never(log_format: str) -> None:
    secret = "sword" + "fish"
    try:
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise ValueError(secret) from error
    except ValueError:
        line = formatter(log_format).format(record(exc_info=sys.exc_info()))
    assert secret not in line
    assert "builtins.ValueError" in line
    assert "builtins.KeyError" in line
    assert "test_request_log.py" in line


def test_a_request_name_is_cut_where_it_is_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "magnitude.server")
    CallRecord("Infer", request_id="x" * 5_000_000).write("INVALID_ARGUMENT", "", logging.INFO)
    [line] = caplog.records
    assert line.fields["request_id"] == "x" * VALUE_CHARACTERS_MAX  # type: ignore[attr-defined]


def test_a_request_name_makes_no_line_of_its_own() -> None:
    line = formatter("text").format(record(fields={"request_id": "a\n2026 INFO forged b"}))
    assert "\n" not in line
    assert r'request_id="a\n2026 INFO forged b' in line


def test_a_call_is_written_with_what_its_servicer_noted(caplog: object) -> None:
    caplog.set_level("INFO", "magnitude.server")  # type: ignore[attr-defined]
    call = CallRecord("Infer", request_id="r", prompt_tokens=3)
    call.write("NOT_FOUND", "MODEL_NOT_FOUND", logging.INFO)
    call.write("OK", "", logging.DEBUG)
    [line] = caplog.records  # type: ignore[attr-defined]
    assert line.fields.pop("ms") >= 0
    assert line.fields == {
        "method": "Infer",
        "code": "NOT_FOUND",
        "request_id": "r",
        "prompt_tokens": 3,
        "reason": "MODEL_NOT_FOUND",
    }
