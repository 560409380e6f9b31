"""What a call can fail with: one class per gRPC status, filled from the google.rpc details of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

STATUS_KEY = "grpc-status-details-bin"


class CallError(Exception):
    """A call failed.

    `reason` is the server's word for it ("CONTEXT_LENGTH_EXCEEDED"), `details` its parts by name, `field_violations`
    the paths of fields at fault with what is wrong, `retry_after_seconds` how long to wait where waiting helps.
    """

    by_code: ClassVar[dict[grpc.StatusCode, type[CallError]]] = {}

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        reason: str = "",
        details: Mapping[str, str] | None = None,
        field_violations: Mapping[str, str] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.reason = reason
        self.details = dict(details or {})
        self.field_violations = dict(field_violations or {})
        self.retry_after_seconds = retry_after_seconds

    def __init_subclass__(cls, code: grpc.StatusCode) -> None:
        cls.by_code[code] = cls


class InvalidRequest(CallError, code=grpc.StatusCode.INVALID_ARGUMENT):
    """A field is out of its bounds; see `field_violations`."""


class Unauthenticated(CallError, code=grpc.StatusCode.UNAUTHENTICATED):
    """The server wants a bearer token: `Client(token=…)`."""


class PermissionDenied(CallError, code=grpc.StatusCode.PERMISSION_DENIED):
    """The token is not one of the server's."""


class NotFound(CallError, code=grpc.StatusCode.NOT_FOUND):
    """There is no such model, session or snapshot."""


class Unavailable(CallError, code=grpc.StatusCode.UNAVAILABLE):
    """Nobody answers, or the model is loading or draining."""


class Exhausted(CallError, code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """No pages, no place in the queue, too large a message, too slow a reader."""


class DeadlineExceeded(CallError, code=grpc.StatusCode.DEADLINE_EXCEEDED):
    """The call's timeout passed."""


class Cancelled(CallError, code=grpc.StatusCode.CANCELLED):
    """The call was cancelled."""


class Unimplemented(CallError, code=grpc.StatusCode.UNIMPLEMENTED):
    """The server does not do this yet; see `field_violations`."""


class PreconditionFailed(CallError, code=grpc.StatusCode.FAILED_PRECONDITION):
    """Another model than expected, a full disk, …"""


class DataLoss(CallError, code=grpc.StatusCode.DATA_LOSS):
    """A file at the server is damaged."""


def call_error(error: Any) -> CallError:
    """The error of a failed call, from grpc's."""
    code = error.code()
    details: dict[str, str] = {}
    fields: dict[str, str] = {}
    reason, retry_after_seconds = "", None
    for detail in status_details(error.trailing_metadata() or ()):
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        bad_request = error_details_pb2.BadRequest()
        if detail.Unpack(info):
            reason, details = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_seconds = retry.retry_delay.ToNanoseconds() / 1e9
        elif detail.Unpack(bad_request):
            fields = {violation.field: violation.description for violation in bad_request.field_violations}
    kind = CallError.by_code.get(code, CallError)
    return kind(code, error.details() or "", reason, details, fields, retry_after_seconds)


def status_details(trailing: Any) -> list[Any]:
    """The details of google.rpc.Status in the trailing metadata."""
    for key, value in trailing:
        if key == STATUS_KEY:
            return list(status_pb2.Status.FromString(value).details)
    return []
