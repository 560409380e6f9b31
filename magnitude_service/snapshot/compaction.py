"""Gives back the space of dead segments: a sidecar is copied and replaced, a model's tail is punched.

FORMAT.md, "Order of writes", has both with every sync. Killed anywhere, what was live is live.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from magnitude.v1 import state_pb2
from magnitude_service.errors import MagnitudeError, PreconditionError
from magnitude_service.snapshot.record import (
    HEADER_BYTES,
    SEQUENCE_MAX,
    Kind,
    SegmentHeader,
    aligned,
    encode_end,
    encode_header,
    message_body,
)
from magnitude_service.snapshot.recovery import read_header, recover
from magnitude_service.snapshot.sidecar import SIDECAR_HEADER
from magnitude_service.snapshot.storage_errors import check_in_place, corrupt, storage_error, storage_errors
from magnitude_service.snapshot.table import Dead, Entry, Table, entry_of, stored_bytes
from magnitude_service.snapshot.tail import Tail
from magnitude_service.snapshot.vfs import File, FileSystem, write_all

LOG = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 << 10
"""What is copied, or given back, at once; between two such pieces the pace is kept. The disk begins with each at once,
so that whoever syncs meanwhile waits for one such piece at most."""

SYNC_BYTES: Final = 8 << 20
"""Copied bytes are synced so often, so that a disk that is slower than the pace has no more of them before it."""


def create_sidecar(file_system: FileSystem, path: Path) -> None:
    """Makes an empty sidecar under its final name: it is there whole, or not at all."""
    new = new_path(path)
    with storage_errors(path, "created"):
        file_system.unlink(new)
        file = file_system.open(new, writable=True, create=True)
        try:
            write_all(file, [SIDECAR_HEADER], 0)
            Tail(file, path, len(SIDECAR_HEADER))
            file.fdatasync()  # now its bytes last
            file_system.rename(new, path)
            file_system.sync_folder(path.parent)  # now its name lasts
        finally:
            file.close()


def new_path(path: Path) -> Path:
    """Where a file is made that will take the place of `path`."""
    return path.with_name(path.name + ".new")


class SidecarCompaction:
    """Copies what is live into a new file beside the old one. `copy` runs beside saves; `replace` holds them back."""

    def __init__(
        self,
        file_system: FileSystem,
        old: Tail,
        *,
        clock: Callable[[], int],
        pace: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Begins the new file. `pace` is told the bytes of each piece, and waits where that was too fast."""
        self._file_system, self._old, self._clock, self._pace = file_system, old, clock, pace
        self._path, self._new_path = old.path, new_path(old.path)
        self._copied: dict[int, Entry] = {}  # by sequence number
        self._damaged: dict[int, Entry] = {}
        self._unsynced_bytes = 0
        with storage_errors(self._new_path, "created"):
            file_system.unlink(self._new_path)
            self._file: File = file_system.open(self._new_path, writable=True, create=True)
            self._file.lock()  # before it has the old one's name: no other writer comes between
            write_all(self._file, [SIDECAR_HEADER], 0)
        self._new = Tail(self._file, self._new_path, len(SIDECAR_HEADER), clock=clock)

    def copy(self, entries: Iterable[Entry]) -> None:
        """Copies segments that are not copied yet; those that came later have larger numbers."""
        for entry in sorted(entries, key=lambda each: each.sequence):
            if entry.sequence in self._copied or entry.sequence in self._damaged:
                continue
            with storage_errors(self._path, "read"):
                segment = read_header(self._old.file, entry.offset, str(self._path))
            if segment is not None and segment.sequence == entry.sequence:
                self._copied[entry.sequence] = self._copy_segment(segment)
            else:
                self._damaged[entry.sequence] = entry
                LOG.warning(
                    "%s: compaction leaves out version %d of session %s: its header at offset %d is damaged",
                    *(self._path, entry.version, entry.session_id, entry.offset),
                )

    def missing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those that are still to be copied."""
        done = self._copied.keys() | self._damaged
        return [entry for entry in entries if entry.sequence not in done]

    def settle(self) -> None:
        """Syncs what is copied so far, so that `replace` need not."""
        with storage_errors(self._new_path, "synced"):
            self._file.fdatasync()

    def replace(self) -> tuple[Tail, MagnitudeError | None]:
        """Copies the rest, makes the new file whole, checks that it says the same, and renames it over the old one.

        Returns the new log; and why it may not last, where it has the name but the folder could not be synced.
        """
        self._pace = lambda count: None  # saves wait for us now
        self.copy(self._old.table.in_file_order())
        live = [entry for entry in self._old.table.in_file_order() if entry.sequence not in self._damaged]
        new = self._new
        new.last_sequence = max(new.last_sequence, self._old.last_sequence)
        self._drop(live)
        new.table.given = dict(self._old.table.given)
        for entry in self._damaged.values():
            new.table.remember(entry.session_id, entry.version)
        new.write_index()
        self._check(live)
        check_in_place(self._file_system, self._path, self._old.identity)  # else somebody else's file would be lost
        with storage_errors(self._path, "replaced"):
            self._file_system.rename(self._new_path, self._path)
        new.path = self._path
        try:
            self._file_system.sync_folder(self._path.parent)  # now the new file is the one, for ever
        except OSError as error:
            return new, storage_error(self._path.parent, "synced", error)
        return new, None

    def abandon(self) -> None:
        """Removes the new file; the old one was not touched."""
        self._file.close()
        with storage_errors(self._new_path, "removed"):
            self._file_system.unlink(self._new_path)

    def _copy_segment(self, segment: SegmentHeader) -> Entry:
        """Copies a segment as it is; what is damaged in it stays so, and is found by who reads it.

        It is read by pread, not from the mapping: there a bad sector would read as zeros, and be copied as such.
        """
        header = segment._replace(
            log_id=self._new.log_id, offset=self._new.segment_offset, durable_through=0, index_offset=0, floor=0
        )
        end = HEADER_BYTES + header.body_bytes
        with storage_errors(self._new_path, "written to"):
            write_all(self._file, [encode_header(header)], header.offset)
            for begin in range(HEADER_BYTES, end, PIECE_BYTES):
                piece = self._old.file.pread(min(PIECE_BYTES, end - begin), segment.offset + begin)
                if len(piece) != min(PIECE_BYTES, end - begin):
                    raise corrupt(self._path, f"it was cut short within the segment at offset {segment.offset}")
                write_all(self._file, [piece], header.offset + begin)
                self._file.start_writeback(header.offset + begin, len(piece))
                self._pace(len(piece))
                self._sync_sometimes(len(piece))
            write_all(self._file, [encode_end(header)], header.offset + end)
        self._new.adopt(header)
        copied = entry_of(header)
        self._new.table.add(copied, 0)
        return copied

    def _sync_sometimes(self, count: int) -> None:
        self._unsynced_bytes += count
        if self._unsynced_bytes >= SYNC_BYTES:
            self._file.fdatasync()
            self._unsynced_bytes = 0

    def _drop(self, live: Iterable[Entry]) -> None:
        """What was copied, and deleted while others were copied, is deleted in the new file too."""
        kept = {(entry.session_id, entry.version) for entry in live}
        dropped = [entry for entry in self._copied.values() if (entry.session_id, entry.version) not in kept]
        if dropped:
            deletions = [
                state_pb2.DeletedVersions(session_id=each.session_id, versions=[each.version]) for each in dropped
            ]
            header = self._new.append(Kind.DELETION, message_body(state_pb2.StoredDeletion(deletions=deletions)))
            for each in dropped:
                self._new.table.delete(each.session_id, [each.version], header.time_ns)
            self._new.table.waste(Dead(header.sequence, header.offset, header.length, header.time_ns))

    def _check(self, live: list[Entry]) -> None:
        """The new file, read as after a start, says what the old one says; else it must not take its place."""
        with storage_errors(self._new_path, "read"):
            found = recover(self._file, self._new.tail_begin, source=str(self._new_path))
        same = found is not None and not found.findings and not found.torn
        if found is None or not same or _said(found.table) != (_said_of(live), self._new.table.given):
            raise corrupt(self._new_path, "the compacted file does not say what the old one says; the old one stays")


def free_slowly(file: File, pace: Callable[[int], None]) -> None:
    """Gives back the space of a file that another one has taken the place of, piece by piece. At once it may be
    thousands of discards, which whoever syncs waits behind: 10% of the saves of a second took twice as long.

    Where anybody holds the file, nothing is done: who closes it last gives it back.
    """
    size = file.size()
    with contextlib.suppress(OSError):  # then `close` does the rest at once
        while size and file.is_forsaken():
            piece = (size - 1) % PIECE_BYTES + 1
            size -= piece
            file.ftruncate(size)
            pace(piece)


def _said(table: Table) -> tuple[list[tuple[str, int, int, int]], dict[str, int]]:
    return _said_of(table.in_file_order()), table.given


def _said_of(entries: Iterable[Entry]) -> list[tuple[str, int, int, int]]:
    return [(entry.session_id, entry.version, entry.sequence, entry.length) for entry in entries]


def freeable(table: Table, held: Iterable[int], latest_ns: int) -> list[Dead]:
    """Segments of a model's tail that may turn into holes: dead since `latest_ns` or before.

    `held`: numbers of segments that readers of this process hold. None from the least of those on is among them, so
    that what deletes a segment never goes before it.
    """
    first_held = min({each.sequence for each in table.dead} & set(held), default=SEQUENCE_MAX)
    return [each for each in sorted(table.dead) if each.sequence < first_held and each.since_ns <= latest_ns]


def punch(tail: Tail, held: Iterable[int], now_ns: int, after_seconds: float) -> int:
    """Gives back the space of segments of a model's tail that have been dead for `after_seconds`; returns its bytes."""
    tail.write_index()  # now nothing dead can come back, whatever of it is still there
    freed = freeable(tail.table, held, now_ns - int(after_seconds * 1e9))
    try:
        for each in freed:
            tail.file.punch(each.offset, aligned(each.length))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise PreconditionError(
                f"{tail.path} lies on a file system that cannot punch holes; its tail only grows.",
                remedy="Use --state sidecar, or --state-dir on another file system.",
                reason="NO_HOLES",
                file=tail.path,
            ) from error
        raise storage_error(tail.path, "punched", error) from error
    tail.sync()  # now what was freed is gone for good, and may be forgotten
    tail.table.forget(freed)
    _cut_dead_end(tail)
    return sum(stored_bytes(each.length) for each in freed)


def _cut_dead_end(tail: Tail) -> None:
    """Where nothing dead is left, only the index lies behind the last live segment: a new one goes nearer to it. Not
    where it alone tells which numbers were given: between the cut and the new one there is none."""
    index = tail.index
    if tail.table.dead or tail.table.given or index is None:
        return
    live = tail.table.in_file_order()
    with storage_errors(tail.path, "read"):
        log = read_header(tail.file, tail.tail_begin, str(tail.path))
    end = live[-1].offset + live[-1].length if live else log.end if log else index.offset
    if aligned(end) < index.offset:
        tail.cut(end)
        tail.write_index()
