"""MagnitudeError becomes google.rpc.Status; anything else becomes INTERNAL with an id that the log explains."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from magnitude_service.errors import DOMAIN, InvalidRequestError, MagnitudeError, UnimplementedError

STATUS_KEY = "grpc-status-details-bin"
"""Trailing metadata in which every gRPC library looks for google.rpc.Status."""

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata by which gRPC's own retries wait as long as we ask; a negative number forbids them."""

MESSAGE_CHARACTERS_MAX = 1_024
DETAIL_CHARACTERS_MAX = 256
"""Trailers beyond 8 KiB make a client drop the whole status, so what a caller sent is shown in part only."""

logger = logging.getLogger("magnitude.server")


def to_status(error: MagnitudeError) -> status_pb2.Status:
    """The status with ErrorInfo always, RetryInfo where waiting helps, BadRequest where a field is at fault."""
    message = shortened(str(error), MESSAGE_CHARACTERS_MAX)
    details = [packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata(error)))]
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        details.append(packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if isinstance(error, InvalidRequestError | UnimplementedError) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=shortened(error.field, DETAIL_CHARACTERS_MAX), description=message, reason=error.reason
        )
        details.append(packed(error_details_pb2.BadRequest(field_violations=[violation])))
    return status_pb2.Status(code=status_code(error).value[0], message=message, details=details)


def metadata(error: MagnitudeError) -> Mapping[str, str]:
    """ErrorInfo's metadata: the error's details and its remedy."""
    parts = {**error.details, **({"remedy": error.remedy} if error.remedy else {})}
    return {key: shortened(value, DETAIL_CHARACTERS_MAX) for key, value in parts.items()}


def shortened(text: str, characters: int) -> str:
    """At most so many characters, without what a header may not carry."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= characters else text[: characters - 1] + "…"


def packed(message: error_details_pb2.ErrorInfo | object) -> any_pb2.Any:
    """The message as google.protobuf.Any."""
    box = any_pb2.Any()
    box.Pack(message)  # type: ignore[arg-type]
    return box


def status_code(error: MagnitudeError) -> grpc.StatusCode:
    """The gRPC code that the error's class names."""
    code = grpc.StatusCode[error.code]
    assert isinstance(code, grpc.StatusCode)
    return code


def internal_error(error: BaseException) -> MagnitudeError:
    """What a caller hears of a mistake of ours; the log has the rest, under the same id."""
    error_id = os.urandom(6).hex()
    logger.error("internal error %s", error_id, exc_info=error)
    return MagnitudeError(
        "The server made a mistake.",
        remedy=f"Report it with the log lines of error {error_id}.",
        reason="INTERNAL",
        error_id=error_id,
    )


async def abort(context: grpc.aio.ServicerContext[object, object], error: MagnitudeError) -> NoReturn:
    """Ends the call with the error's status and details."""
    status = to_status(error)
    wait = -1 if error.retry_after_seconds is None else int(error.retry_after_seconds * 1_000)
    trailing = ((STATUS_KEY, status.SerializeToString()), (PUSHBACK_KEY, str(wait)))
    await context.abort(status_code(error), status.message, trailing)
    raise AssertionError("abort returned")
