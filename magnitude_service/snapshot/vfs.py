"""The file operations that the store needs, and nothing else: the seam where tests record, fail and lose them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service.formats import _formats
from magnitude_service.snapshot import _snapshot
from magnitude_service.snapshot.checksum import Buffer, memory

FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
IOVEC_MAX = 1024


class File(Protocol):
    """One open file. Every method but `close` may raise OSError."""

    def size(self) -> int:
        """Bytes, holes included."""

    def identity(self) -> tuple[int, int]:
        """Device and inode."""

    def is_linked(self) -> bool:
        """Whether it still has a name, whichever. Quick, for no name is looked up."""

    def is_forsaken(self) -> bool:
        """Whether it has no name any more, and nobody but this object has it open or mapped: then nobody ever will."""

    def pread(self, count: int, offset: int) -> bytes:
        """At most `count` bytes; fewer only at the end of the file."""

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """Writes the parts one behind another and returns how many bytes it wrote, which may be fewer."""

    def start_writeback(self, offset: int, count: int) -> None:
        """Lets the disk begin with bytes that were written, and does not wait. Promises nothing and raises nothing."""

    def fdatasync(self) -> None:
        """When it returns, what was written, and the size, survive a loss of power."""

    def ftruncate(self, size: int) -> None:
        """Cuts the file, or lengthens it by zeros."""

    def punch(self, offset: int, count: int) -> None:
        """Turns bytes into a hole: they read as zeros and take no space."""

    def next_data(self, offset: int) -> int | None:
        """Where, from `offset` on, the next bytes that are not a hole may be; None: nowhere."""

    def lock(self) -> bool:
        """Takes the exclusive lock, which ends with this process or `close`; False where somebody else has it."""

    def map(self, count: int) -> NDArray[np.uint8]:
        """The first `count` bytes as memory, read-only, or as many as there are. A file that shrinks reads as
        zeros then. *Lifetime*: the memory outlives the file's `close`."""

    def close(self) -> None:
        """Gives back the descriptor and the lock."""


class FileSystem(Protocol):
    """Where files are."""

    def open(self, path: Path, *, writable: bool, create: bool = False) -> File:
        """Opens a regular file; with `create`, makes it or empties it."""

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Device and inode of the file of this name; None where there is none."""

    def rename(self, old: Path, new: Path) -> None:
        """Replaces `new` in one step."""

    def unlink(self, path: Path) -> None:
        """Removes a name; none is no error."""

    def sync_folder(self, path: Path) -> None:
        """When it returns, renames in this folder survive a loss of power."""


class OperatingSystemFile:
    """A File of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_mapped_unseen = False

    def size(self) -> int:
        """See File."""
        return os.fstat(self._descriptor).st_size

    def identity(self) -> tuple[int, int]:
        """See File."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def is_linked(self) -> bool:
        """See File."""
        return _snapshot.is_linked(self._descriptor)

    def is_forsaken(self) -> bool:
        """See File. The kernel knows: it grants a lease for writing only to a file's sole owner, whoever else there
        may be, in this process too (`map`). Who may not have leases never is one."""
        if self._is_mapped_unseen or self.is_linked():
            return False
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except (OSError, AttributeError):  # only Linux has leases
            return False
        return True

    def pread(self, count: int, offset: int) -> bytes:
        """See File."""
        block = os.pread(self._descriptor, count, offset)
        while len(block) < count:
            more = os.pread(self._descriptor, count - len(block), offset + len(block))
            if not more:
                break
            block += more
        return block

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """See File."""
        return os.pwritev(self._descriptor, parts[:IOVEC_MAX], offset)

    def start_writeback(self, offset: int, count: int) -> None:
        """See File."""
        _snapshot.start_writeback(self._descriptor, offset, count)

    def fdatasync(self) -> None:
        """See File."""
        os.fdatasync(self._descriptor)

    def ftruncate(self, size: int) -> None:
        """See File."""
        os.ftruncate(self._descriptor, size)

    def punch(self, offset: int, count: int) -> None:
        """See File."""
        import ctypes  # Python has no fallocate(2) with a mode

        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "fallocate"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        mode = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        if libc.fallocate(self._descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(count)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def next_data(self, offset: int) -> int | None:
        """See File."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that knows no holes
                return offset if offset < self.size() else None
            raise

    def lock(self) -> bool:
        """See File."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def map(self, count: int) -> NDArray[np.uint8]:
        """See File. Maps beyond the end, too: what is appended later appears there."""
        descriptor = self._opened_again()
        try:
            mapping = _formats.map_file(descriptor, count)
        finally:
            os.close(descriptor)
        if isinstance(mapping, int):
            raise OSError(mapping, os.strerror(mapping))
        return mapping.view

    def _opened_again(self) -> int:
        """The same file by another descriptor: a mapping of that is seen by `is_forsaken`, one of ours is not."""
        try:
            return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # nothing is mounted at /proc, say
            self._is_mapped_unseen = True
            return os.dup(self._descriptor)

    def close(self) -> None:
        """See File."""
        with contextlib.suppress(OSError):  # a mapping might keep the lock alive beyond the descriptor's end
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


class OperatingSystem:
    """The FileSystem of the operating system."""

    def open(self, path: Path, *, writable: bool, create: bool = False) -> OperatingSystemFile:
        """See FileSystem."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        flags |= (os.O_CREAT | os.O_TRUNC) if create else 0
        descriptor = os.open(path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError("it is no regular file")
        return OperatingSystemFile(descriptor)

    def identity(self, path: Path) -> tuple[int, int] | None:
        """See FileSystem."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def rename(self, old: Path, new: Path) -> None:
        """See FileSystem."""
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        """See FileSystem."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(file: File, parts: Sequence[Buffer], offset: int) -> int:
    """Writes the parts whole, in as many calls as it takes; returns their bytes. Raises OSError."""
    views = [part if type(part) is bytes else memory(part) for part in parts]
    views, written = [view for view in views if view], 0
    while views:
        count = file.pwritev(views, offset + written)
        if count <= 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        written += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views and count:
            views[0] = memory(views[0])[count:]
    return written
