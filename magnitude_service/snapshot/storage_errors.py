"""What the operating system refuses, in our own errors: each names the file and the call, and says what to do.

One reason, one status: whatever the disk does not do is FAILED_PRECONDITION, for trying again does not help before
somebody has looked at it; DATA_LOSS is said only of bytes that were stored and are damaged.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from magnitude_service.errors import (
    ExhaustedError,
    IntegrityError,
    MagnitudeError,
    NotFoundError,
    PreconditionError,
)
from magnitude_service.snapshot.vfs import FileSystem

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBADF)
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@contextlib.contextmanager
def storage_errors(path: Path, action: str) -> Iterator[None]:
    """Turns an OSError of the block into one of ours. `action` completes "cannot be …"."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, action, error) from error


def storage_error(path: Path, action: str, error: OSError) -> MagnitudeError:
    """PreconditionError (STORAGE_FULL, READ_ONLY, STORAGE_FAILED), NotFoundError or ExhaustedError."""
    why = os.strerror(error.errno) if error.errno else str(error)
    message = f"{path} cannot be {action}: {why}."
    details = {"file": path}
    if error.errno in FULL:
        remedy = "Free space on its file system (or raise `ulimit -f`), delete sessions and compact, then save again."
        return PreconditionError(message, remedy=remedy, reason="STORAGE_FULL", **details)  # type: ignore[arg-type]
    if error.errno in FORBIDDEN:
        remedy = "Make it and its folder writable for this process, or set --state-dir to a folder that is."
        return PreconditionError(message, remedy=remedy, reason="READ_ONLY", **details)  # type: ignore[arg-type]
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        remedy = "Check the name."
        return NotFoundError(message, remedy=remedy, reason="STATE_FILE_NOT_FOUND", **details)  # type: ignore[arg-type]
    if error.errno in SCARCE:
        remedy = "Raise the limit of open files or of memory (`ulimit -n`, `ulimit -v`)."
        return ExhaustedError(message, remedy=remedy, reason="FILE_LIMIT", **details)  # type: ignore[arg-type]
    remedy = "Check the disk and its file system. What was saved before is still there."
    return PreconditionError(message, remedy=remedy, reason="STORAGE_FAILED", **details)  # type: ignore[arg-type]


def check_in_place(file_system: FileSystem, path: Path, identity: tuple[int, int]) -> None:
    """Raises PreconditionError (STATE_FILE_REPLACED) unless an open file still has its name: what is written to it then
    is lost with this process."""
    try:
        found = file_system.identity(path)
    except OSError as error:
        raise storage_error(path, "found", error) from error
    if found != identity:
        what = "was removed or renamed" if found is None else "was replaced by another file"
        raise PreconditionError(
            f"{path} {what} while it is written: nothing is saved any more, for it would be lost.",
            remedy="Put it back under this name; or load the model again, to go on with what lies there now.",
            reason="STATE_FILE_REPLACED",
            file=path,
        )


def corrupt(path: Path, what: str, **details: object) -> IntegrityError:
    """DATA_LOSS, TAIL_CORRUPT."""
    return IntegrityError(
        f"{path}: {what}.",
        remedy="Restore an older version of the session; `magnitude state check` lists what is damaged.",
        reason="TAIL_CORRUPT",
        file=path,
        **details,  # type: ignore[arg-type]
    )
