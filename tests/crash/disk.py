"""A disk in memory that records every operation, fails those that a test names, and loses what was never synced.

What a loss of power may leave: of the writes since a file's last sync any sectors, in any order; of cuts and holes
since then any; of names since the folder's last sync the first few. What was synced is there.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SECTOR_BYTES = 512


class Operation(NamedTuple):
    """One change of the disk, or a mark that a test made."""

    kind: str  # create, write, cut, punch, sync, rename, unlink, sync_folder, mark
    inode: int = 0
    offset: int = 0
    data: bytes = b""
    path: Path = Path()
    new_path: Path = Path()
    mark: object = None


@dataclass
class Fault:
    """The operation of this number fails; a write, where `short_bytes` is set, writes only so many instead."""

    number: int = -1
    errno: int = errno.EIO
    short_bytes: int | None = None
    happened: str = ""


@dataclass
class Disk:
    """A FileSystem. `operations` has all that changed something; `calls` counts all that may fail."""

    contents: dict[int, bytearray] = field(default_factory=dict)
    names: dict[Path, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    locks: set[int] = field(default_factory=set)
    fault: Fault = field(default_factory=Fault)
    calls: int = 0
    is_read_only: bool = False
    skips_sync: Callable[[int], bool] = lambda count: False  # the deliberate fault: a sync that does nothing
    syncs: int = 0

    @classmethod
    def with_file(cls, path: Path, data: bytes) -> Disk:
        """A disk on which one file is, and lasts."""
        disk = cls()
        disk.contents[1], disk.names[path] = bytearray(data), 1
        return disk

    def may_fail(self, what: str) -> None:
        """Counts an operation, and fails where the test wants it."""
        number, self.calls = self.calls, self.calls + 1
        if number == self.fault.number and self.fault.short_bytes is None:
            self.fault.happened = what
            raise OSError(self.fault.errno, os.strerror(self.fault.errno))

    def record(self, operation: Operation) -> None:
        """Remembers a change."""
        if self.is_read_only and operation.kind != "mark":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self.operations.append(operation)

    def mark(self, mark: object) -> None:
        """Remembers when something happened."""
        self.record(Operation("mark", mark=mark))

    def open(self, path: Path, *, writable: bool, create: bool = False) -> DiskFile:
        """See FileSystem."""
        self.may_fail(f"open {path.name}")
        if writable and self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if create:
            inode = max(self.contents, default=0) + 1
            self.record(Operation("create", inode, path=path))
            self.contents[inode], self.names[path] = bytearray(), inode
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return DiskFile(self, self.names[path])

    def identity(self, path: Path) -> tuple[int, int] | None:
        """See FileSystem."""
        return (1, self.names[path]) if path in self.names else None

    def rename(self, old: Path, new: Path) -> None:
        """See FileSystem."""
        self.may_fail("rename")
        self.record(Operation("rename", path=old, new_path=new))
        self.names[new] = self.names.pop(old)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        self.may_fail("unlink")
        if path in self.names:
            self.record(Operation("unlink", path=path))
            del self.names[path]

    def sync_folder(self, path: Path) -> None:
        """See FileSystem."""
        self.may_fail("sync_folder")
        self.record(Operation("sync_folder"))


class DiskFile:
    """A File of a Disk."""

    def __init__(self, disk: Disk, inode: int) -> None:
        self._disk, self._inode, self._is_owner = disk, inode, False

    @property
    def _content(self) -> bytearray:
        return self._disk.contents[self._inode]

    def size(self) -> int:
        """See File."""
        return len(self._content)

    def identity(self) -> tuple[int, int]:
        """See File."""
        return 1, self._inode

    def is_linked(self) -> bool:
        """See File."""
        return self._inode in self._disk.names.values()

    def is_forsaken(self) -> bool:
        """See File. What `map` gave is a copy."""
        return not self.is_linked()

    def pread(self, count: int, offset: int) -> bytes:
        """See File."""
        self._disk.may_fail("pread")
        with memoryview(self._content) as view:
            return bytes(view[offset : offset + count])

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """See File."""
        data, fault = b"".join(parts), self._disk.fault
        if self._disk.calls == fault.number and fault.short_bytes is not None:
            data, fault.happened = data[: max(1, min(fault.short_bytes, len(data)))], "short write"
        elif self._disk.calls == fault.number and len(data) > 1:  # half of it arrives, and then it fails
            self._write(data[: len(data) // 2], offset)
        self._disk.may_fail("pwritev")
        self._write(data, offset)
        return len(data)

    def _write(self, data: bytes, offset: int) -> None:
        self._disk.record(Operation("write", self._inode, offset, data))
        apply_write(self._content, offset, data)

    def start_writeback(self, offset: int, count: int) -> None:
        """See File. What was written and not synced may be on the disk in any case."""

    def fdatasync(self) -> None:
        """See File."""
        self._disk.may_fail("fdatasync")
        number, self._disk.syncs = self._disk.syncs, self._disk.syncs + 1
        if not self._disk.skips_sync(number):
            self._disk.record(Operation("sync", self._inode))

    def ftruncate(self, size: int) -> None:
        """See File."""
        self._disk.may_fail("ftruncate")
        self._disk.record(Operation("cut", self._inode, size))
        apply_cut(self._content, size)

    def punch(self, offset: int, count: int) -> None:
        """See File."""
        self._disk.may_fail("punch")
        self._disk.record(Operation("punch", self._inode, offset, bytes(count)))
        apply_punch(self._content, offset, count)

    def next_data(self, offset: int) -> int | None:
        """See File."""
        self._disk.may_fail("next_data")
        rest = np.frombuffer(bytes(self._content[offset:]), np.uint8)
        first = int((rest != 0).argmax()) if len(rest) else 0
        return offset + first if len(rest) and rest[first] else None

    def lock(self) -> bool:
        """See File."""
        self._disk.may_fail("lock")
        if self._inode in self._disk.locks:
            return self._is_owner
        self._disk.locks.add(self._inode)
        self._is_owner = True
        return True

    def map(self, count: int) -> NDArray[np.uint8]:
        """See File."""
        self._disk.may_fail("map")
        return np.frombuffer(bytes(self._content), np.uint8)[:count]

    def close(self) -> None:
        """See File."""
        if self._is_owner:
            self._disk.locks.discard(self._inode)


def apply_write(content: bytearray, offset: int, data: bytes) -> None:
    """Bytes at an offset; zeros before them where the file was shorter."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def apply_cut(content: bytearray, size: int) -> None:
    """Another size."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def apply_punch(content: bytearray, offset: int, count: int) -> None:
    """Zeros, the size kept."""
    end = min(offset + count, len(content))
    if offset < end:
        content[offset:end] = bytes(end - offset)


@dataclass
class Platter:
    """What is on the disk for certain, and what may be: follows the operations one by one."""

    contents: dict[int, bytearray] = field(default_factory=dict)
    names: dict[Path, int] = field(default_factory=dict)
    pending: dict[int, list[Operation]] = field(default_factory=dict)
    pending_names: list[Operation] = field(default_factory=list)

    @classmethod
    def before(cls, path: Path, data: bytes) -> Platter:
        """What `Disk.with_file` began with."""
        return cls({1: bytearray(data)}, {path: 1})

    def follow(self, operation: Operation) -> None:
        """The next operation."""
        match operation.kind:
            case "write" | "cut" | "punch":
                self.pending.setdefault(operation.inode, []).append(operation)
            case "sync":
                content = self.contents[operation.inode]
                for each in self.pending.pop(operation.inode, []):
                    apply_whole(content, each)
            case "create":
                self.contents[operation.inode] = bytearray()
                self.pending_names.append(operation)
            case "rename" | "unlink":
                self.pending_names.append(operation)
            case "sync_folder":
                for each in self.pending_names:
                    apply_name(self.names, each)
                self.pending_names.clear()

    def after_power_loss(self, chance: random.Random) -> Disk:
        """What a machine may find when it starts again: of what was not synced, anything."""
        disk = Disk({inode: bytearray(content) for inode, content in self.contents.items()}, dict(self.names))
        for inode, operations in self.pending.items():
            for each in operations:
                fate = chance.choice(("whole", "whole", "lost", "torn", "torn"))
                if fate == "whole":
                    apply_whole(disk.contents[inode], each)
                elif fate == "torn":
                    apply_torn(disk.contents[inode], each, chance, chance.choice((0.2, 0.5, 0.9)))
        for each in self.pending_names[: chance.randint(0, len(self.pending_names))]:
            apply_name(disk.names, each)
        return disk

    def after_kill(self, last: Operation, chance: random.Random) -> Disk:
        """What the next process finds: all that was done, and of the last write as much as the kernel had taken."""
        disk = Disk({inode: bytearray(content) for inode, content in self.contents.items()}, dict(self.names))
        for each in self.pending_names:
            apply_name(disk.names, each)
        for inode, operations in self.pending.items():
            for each in operations:
                if each is last and each.kind == "write":
                    apply_write(disk.contents[inode], each.offset, each.data[: chance.randint(0, len(each.data))])
                else:
                    apply_whole(disk.contents[inode], each)
        return disk


def apply_whole(content: bytearray, operation: Operation) -> None:
    """A change, as it was meant."""
    if operation.kind == "write":
        apply_write(content, operation.offset, operation.data)
    elif operation.kind == "cut":
        apply_cut(content, operation.offset)
    else:
        apply_punch(content, operation.offset, len(operation.data))


def apply_torn(content: bytearray, operation: Operation, chance: random.Random, kept: float) -> None:
    """Some sectors of a change; `kept`: how likely each is to have reached the disk."""
    if operation.kind == "cut":
        if chance.random() < kept:
            apply_cut(content, operation.offset)
        return
    if operation.kind == "write" and chance.random() < 0.5:  # the size came first, the bytes are still zeros
        apply_write(content, max(len(content), operation.offset + len(operation.data)), b"")
    end = operation.offset + len(operation.data)
    first = operation.offset - operation.offset % SECTOR_BYTES
    for sector in range(first, end, SECTOR_BYTES):
        if chance.random() < kept:
            begin, stop = max(sector, operation.offset), min(sector + SECTOR_BYTES, end)
            if operation.kind == "write":
                apply_write(content, begin, operation.data[begin - operation.offset : stop - operation.offset])
            else:
                apply_punch(content, begin, stop - begin)


def apply_name(names: dict[Path, int], operation: Operation) -> None:
    """A change of the folder."""
    if operation.kind == "create":
        names[operation.path] = operation.inode
    elif operation.kind == "rename" and operation.path in names:
        names[operation.new_path] = names.pop(operation.path)
    elif operation.kind == "unlink":
        names.pop(operation.path, None)
