"""Opens a regular file for reading, and says precisely why not."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

from magnitude_service.errors import (
    ExhaustedError,
    FileAccessError,
    IntegrityError,
    InvalidRequestError,
    MagnitudeError,
    NotFoundError,
    PreconditionError,
)

# O_NONBLOCK: opening a FIFO must not wait for a writer. O_NOCTTY: nor may a terminal become ours.
OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

SHOWN_FILES = 3


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """The descriptor and status of a regular file that is not empty.

    *Raises*: NotFoundError, FileAccessError, InvalidRequestError (a folder, a FIFO, a device), IntegrityError (empty
    or unreadable), ExhaustedError (too many open files). *Lifetime*: the caller closes the descriptor.
    """
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except (OSError, ValueError) as error:
        raise _open_error(path, error) from error
    try:
        status = os.fstat(descriptor)
        _require_content(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def _require_content(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_file(path, status.st_mode)
    if status.st_size == 0:
        raise IntegrityError(
            f"{path} is empty (0 bytes).", remedy="Its download or copy has failed; fetch it again.", file=path
        )


def _not_a_file(path: Path, mode: int) -> MagnitudeError:
    if stat.S_ISDIR(mode):
        return InvalidRequestError(
            f"{path} is a folder, not a model file.", remedy=_models_in(path), field="model", file=path
        )
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a block device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "no regular file")
    return InvalidRequestError(
        f"{path} is {kind}; a model must be a regular file, because it is mapped.",
        remedy="Copy the model into a file first.",
        field="model",
        file=path,
    )


def _models_in(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".gguf"))
    except OSError:
        names = []
    if not names:
        return "Name a GGUF file."
    more = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return f"Name a file in it: {', '.join(names[:SHOWN_FILES])}{more}."


def _open_error(path: Path, error: OSError | ValueError) -> MagnitudeError:
    if isinstance(error, ValueError):  # a NUL in the path
        return InvalidRequestError(f"{str(path)!r} is no path: {error}.", field="model")
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ELOOP | errno.ENAMETOOLONG:
            return NotFoundError(
                f"{path} cannot be opened: {error.strerror}.",
                remedy=f"Check the name; relative names start in {Path.cwd()}.",
                reason="MODEL_NOT_FOUND",
                file=path,
            )
        case errno.EACCES | errno.EPERM:
            return denied(path)
        case errno.EMFILE | errno.ENFILE:
            return ExhaustedError(
                f"{path} cannot be opened: {error.strerror}.",
                remedy="Raise the limit of open files (`ulimit -n`).",
                reason="FILE_LIMIT",
                file=path,
            )
        case errno.ENXIO:
            return _not_a_file(path, stat.S_IFSOCK)
        case errno.EIO:
            return IntegrityError(f"{path} cannot be read: {error.strerror}.", remedy="Check the disk.", file=path)
    return PreconditionError(f"{path} cannot be opened: {error.strerror}.", file=path)


def denied(path: Path) -> FileAccessError:
    """Which file or folder refuses us, whose it is, its mode, and what would do."""
    absolute = path.absolute()
    for folder in reversed(absolute.parents):
        if not os.access(folder, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return _denied_error(path, folder, "searched", "x")
    return _denied_error(path, absolute, "read", "r")


def _denied_error(path: Path, culprit: Path, verb: str, letter: str) -> FileAccessError:
    user = _user_name(os.geteuid())
    try:
        status = culprit.stat()
    except OSError:
        return FileAccessError(f"{path} may not be read by this process ({user}).", file=path)
    owner, group, mode = _user_name(status.st_uid), _group_name(status.st_gid), stat.S_IMODE(status.st_mode)
    subject = (
        f"{path} may not be read"
        if culprit == path.absolute()
        else f"{path} is out of reach: {culprit} may not be {verb}"
    )
    is_member = status.st_gid in {os.getegid(), *os.getgroups()}
    needed = stat.S_IROTH if letter == "r" else stat.S_IXOTH
    if mode & needed and status.st_uid != os.geteuid() and not is_member:
        remedy = "Its mode would allow it: an access control list or a security module (SELinux, AppArmor) does not."
    else:
        who = "u" if status.st_uid == os.geteuid() else "g" if is_member else "o"
        remedy = f"`chmod {who}+{letter} {shlex.quote(str(culprit))}` would do, or running as {owner}."
    return FileAccessError(
        f"{subject} by this process ({user}): it belongs to {owner}, group {group}, mode {mode:04o}.",
        remedy=remedy,
        file=path,
    )


def _user_name(id: int) -> str:
    try:
        return f"{pwd.getpwuid(id).pw_name} (uid {id})"
    except KeyError:
        return f"uid {id}"


def _group_name(id: int) -> str:
    try:
        return f"{grp.getgrgid(id).gr_name} (gid {id})"
    except KeyError:
        return f"gid {id}"
