"""Our errors on the wire: google.rpc.Status with the details that callers act on."""

from __future__ import annotations

from google.rpc import error_details_pb2, status_pb2

from magnitude_service.errors import DOMAIN, ExhaustedError, InvalidRequestError, MagnitudeError, UnimplementedError
from magnitude_service.server.status import internal_error, to_status


def details(status: status_pb2.Status) -> dict[str, object]:
    found: dict[str, object] = {}
    for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest):
        for detail in status.details:
            message = kind()
            if detail.Unpack(message):
                found[kind.__name__] = message
    return found


def test_every_error_carries_reason_domain_details_and_remedy() -> None:
    status = to_status(MagnitudeError("Broken.", remedy="Mend it.", reason="BROKEN", file="a.gguf", offset=12))
    assert status.code == 13
    assert status.message == "Broken. Mend it."
    [(_, info)] = details(status).items()
    assert (info.reason, info.domain) == ("BROKEN", DOMAIN)
    assert dict(info.metadata) == {"file": "a.gguf", "offset": "12", "remedy": "Mend it."}


def test_a_field_at_fault_comes_as_bad_request() -> None:
    for error in (InvalidRequestError("bad", field="a.b[1]"), UnimplementedError("later", field="a.b[1]")):
        [violation] = details(to_status(error))["BadRequest"].field_violations
        assert (violation.field, violation.description, violation.reason) == ("a.b[1]", str(error), error.reason)


def test_a_delay_comes_as_retry_info_only_where_waiting_helps() -> None:
    status = to_status(ExhaustedError("full", retry_after_seconds=1.5))
    assert details(status)["RetryInfo"].retry_delay.ToMilliseconds() == 1_500
    assert "RetryInfo" not in details(to_status(ExhaustedError("too large")))


def test_long_and_broken_text_is_shortened_so_that_trailers_stay_small() -> None:
    error = InvalidRequestError("m" * 10_000, field="f" * 10_000, value="\ud800" + "v" * 10_000)
    assert len(to_status(error).SerializeToString()) < 4_096


def test_an_unexpected_exception_shows_an_id_and_nothing_of_itself(caplog: object) -> None:
    error = internal_error(ValueError("a secret"))
    status = to_status(error)
    assert status.code == 13
    assert "secret" not in str(status)
    [record] = caplog.records  # type: ignore[attr-defined]
    assert error.details["error_id"] in record.getMessage()
    assert record.exc_info
