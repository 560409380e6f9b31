"""One tree of errors. Each class fixes its gRPC status and its default reason.

                         MagnitudeError (INTERNAL)
     ┌───────────────┬────────┴──────┬──────────────┬─────────────┐
 InvalidRequestError NotFoundError  UnavailableError  ExhaustedError  DataLossError …

A message says what was found, what is allowed and which file, field or system call it concerns; the
remedy says what to do. `details` become the metadata of `google.rpc.ErrorInfo`. This module knows no
grpc: `server/status.py` turns the tree into statuses, `cli` turns it into exit codes.
"""

from __future__ import annotations

from typing import ClassVar

DOMAIN = "magnitude.dev"
"""The `domain` of every `google.rpc.ErrorInfo` that we send."""


class MagnitudeError(Exception):
    """Base of every error that we raise on purpose.

    `code` names a gRPC status; `exit_code` is what the command line returns (sysexits.h).
    """

    code: ClassVar[str] = "INTERNAL"
    default_reason: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        reason: str = "",
        retry_after_seconds: float | None = None,
        **details: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.reason = reason or self.default_reason
        self.retry_after_seconds = retry_after_seconds
        self.details = {key: str(value) for key, value in details.items()}

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()


class InvalidRequestError(MagnitudeError):
    """A field of a request, a setting or an argument is out of its bounds; `field` is its path."""

    code, default_reason, exit_code = "INVALID_ARGUMENT", "INVALID_REQUEST", 64

    def __init__(self, message: str, *, field: str = "", **rest: object) -> None:
        super().__init__(message, **rest, **({"field": field} if field else {}))  # type: ignore[arg-type]
        self.field = field


class ContextLengthError(InvalidRequestError):
    """Prompt and answer together exceed the context of the model."""

    default_reason = "CONTEXT_LENGTH_EXCEEDED"


class ConfigurationError(InvalidRequestError):
    """A setting is unknown, misspelt or out of bounds; the message names its source."""

    default_reason, exit_code = "INVALID_CONFIGURATION", 78


class UnimplementedError(MagnitudeError):
    """Asked for by its right name, but not built yet; `field` is its path where a request asked."""

    code, default_reason, exit_code = "UNIMPLEMENTED", "NOT_IMPLEMENTED", 69

    def __init__(self, message: str, *, field: str = "", **rest: object) -> None:
        super().__init__(message, **rest, **({"field": field} if field else {}))  # type: ignore[arg-type]
        self.field = field


class NotFoundError(MagnitudeError):
    """No such model, session, snapshot, request or file; `reason` says which."""

    code, default_reason, exit_code = "NOT_FOUND", "NOT_FOUND", 66


class UnauthenticatedError(MagnitudeError):
    """The caller does not say who it is, where that is asked for."""

    code, default_reason, exit_code = "UNAUTHENTICATED", "TOKEN_MISSING", 77


class PermissionDeniedError(MagnitudeError):
    """The caller, or this process, may not do this."""

    code, default_reason, exit_code = "PERMISSION_DENIED", "PERMISSION_DENIED", 77


class FileAccessError(PermissionDeniedError):
    """The operating system refused access to a file."""


class UnavailableError(MagnitudeError):
    """Not now, but soon: a model that loads, a server that drains. Carries a retry delay."""

    code, default_reason, exit_code = "UNAVAILABLE", "MODEL_NOT_READY", 75


class ExhaustedError(MagnitudeError):
    """No memory, no pages, no place in the queue. Carries a retry delay where waiting helps."""

    code, default_reason, exit_code = "RESOURCE_EXHAUSTED", "QUEUE_FULL", 75


class DeadlineExceededError(MagnitudeError):
    """The caller's deadline passed while the request was queued or running."""

    code, default_reason, exit_code = "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 75


class CancelledError(MagnitudeError):
    """The caller went away, or asked for an abort."""

    code, default_reason, exit_code = "CANCELLED", "CANCELLED", 75


class PreconditionError(MagnitudeError):
    """The state of the system forbids it: a full disk, a read-only target, another model's identity."""

    code, default_reason, exit_code = "FAILED_PRECONDITION", "FAILED_PRECONDITION", 73


class IntegrityError(MagnitudeError):
    """A file is damaged, was changed while mapped, or is not what its hash promised."""

    code, default_reason, exit_code = "DATA_LOSS", "INTEGRITY", 65


class IncompatibleVersionError(PreconditionError):
    """A file of a format or version that we do not read: not GGUF, GGUF v1, big-endian."""

    default_reason, exit_code = "INCOMPATIBLE_VERSION", 65


class UnsupportedModelError(PreconditionError):
    """A sound file that asks for an architecture, tokenizer or tensor type that we do not have."""

    default_reason, exit_code = "UNSUPPORTED_MODEL", 69


class QuantizationMismatchError(UnsupportedModelError):
    """A tensor's type or row length does not fit what the architecture needs of it."""

    default_reason = "QUANTIZATION_MISMATCH"
