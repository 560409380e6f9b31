"""The log of one state file, for its one writer: opens, repairs, appends, and commits many saves with one sync.

FORMAT.md, "Order of writes", says what each sync makes true.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from magnitude.v1 import state_pb2
from magnitude_service import __version__
from magnitude_service.errors import MagnitudeError, PreconditionError
from magnitude_service.snapshot.checksum import crc32c
from magnitude_service.snapshot.record import (
    MAGIC,
    PAGE_BYTES,
    SEQUENCE_MAX,
    Body,
    Kind,
    SegmentHeader,
    aligned,
    message_body,
    segment_parts,
)
from magnitude_service.snapshot.recovery import Finding, Recovered, recover
from magnitude_service.snapshot.storage_errors import storage_error, storage_errors
from magnitude_service.snapshot.table import FREE_AT_ONCE, Dead, Table, encode_index
from magnitude_service.snapshot.vfs import File, write_all

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""


class Tail:
    """Appends segments to a file whose lock this process holds.

    `append` and what changes `table` is called under the owner's lock; `commit` by any thread, without it.
    """

    def __init__(
        self,
        file: File,
        path: Path,
        tail_begin: int,
        *,
        clock: Callable[[], int] = time.time_ns,
        new_log_id: Callable[[], int] = lambda: secrets.randbits(63) | 1,
    ) -> None:
        """Recovers the log, or begins one. *Raises*: whatever `storage_errors` says; PreconditionError where the
        bytes behind the model are not ours; IncompatibleVersionError."""
        self.file, self.path, self.tail_begin = file, path, tail_begin
        self.identity = file.identity()
        self._clock = clock
        self._failure: MagnitudeError | None = None
        self._is_torn = False
        self._syncs = threading.Condition()  # guards durable_through, _is_syncing, _failure
        self._is_syncing = False
        with storage_errors(path, "opened"):
            recovered = recover(file, tail_begin, source=str(path))
            if recovered is None:
                recovered = self._begin(new_log_id())
            else:
                self._repair(recovered)
        self.table: Table = recovered.table
        self.findings: list[Finding] = recovered.findings
        self.log_id = recovered.log_id
        self.end = recovered.end
        self.index = recovered.index
        self.since_index = recovered.replayed
        self.used_index = recovered.used_index
        self.last_sequence = self.durable_through = recovered.last_sequence
        if recovered.findings:
            self.write_index()

    @property
    def segment_offset(self) -> int:
        """Where the next segment begins."""
        return aligned(self.end)

    def append(
        self, kind: Kind, body: Body, *, version: int = 0, floor: int = 0, session_id: str = ""
    ) -> SegmentHeader:
        """Writes a segment behind the end; it is durable only after `commit`.

        *Raises*: whatever `storage_errors` says; then the log is as it was.
        """
        header = SegmentHeader(
            kind,
            self.log_id,
            aligned(self.end),
            self.last_sequence + 1,
            self.durable_through,
            body.nbytes,
            len(body.envelope),
            crc32c(body.envelope),
            self.index.offset if self.index else 0,
            self._clock(),
            version,
            floor,
            session_id,
        )
        self.write(header, body)
        return header

    def write(self, header: SegmentHeader, body: Body) -> None:
        """Writes a segment whose header is made already."""
        self._check_failure()
        try:
            if self._is_torn:
                self._cut()
            self._is_torn = True
            write_all(self.file, segment_parts(header, body), header.offset)
            self._is_torn = False
        except OSError as error:
            self._cut_if_possible()
            raise storage_error(self.path, "written to", error) from error
        self.adopt(header)

    def commit(self, sequence: int) -> None:
        """Returns when the segment of this number, and all before it, survive a loss of power.

        Whoever comes while a sync runs waits for the next one, which serves all that came meanwhile.
        *Raises*: whatever `storage_errors` says; then nothing more is written until the file is opened again.
        """
        with self._syncs:
            while self.durable_through < sequence:
                self._check_failure()
                if self._is_syncing:
                    self._syncs.wait()
                    continue
                self._is_syncing = True
                reached = self.last_sequence  # all of them were written before this line
                self._syncs.release()
                failure = None
                try:
                    self.file.fdatasync()
                except OSError as error:
                    failure = storage_error(self.path, "synced", error)
                finally:
                    self._syncs.acquire()
                    self._is_syncing = False
                    self._syncs.notify_all()
                if failure is not None:
                    self.fail(failure)  # what the disk has now is not known: FORMAT.md, "Save"
                    raise failure
                self.durable_through = max(self.durable_through, reached)

    def sync(self) -> None:
        """Makes everything durable that was done to the file; a failure ends all writing, as in `commit`."""
        self._check_failure()
        try:
            self.file.fdatasync()
        except OSError as error:
            self.fail(failure := storage_error(self.path, "synced", error))
            raise failure from error

    def write_index(self) -> None:
        """Writes an INDEX and commits it. All segments before it are durable before it is written."""
        self.commit(self.last_sequence)
        old = self.index
        dies = [Dead(old.sequence, old.offset, old.length, FREE_AT_ONCE)] if old else []
        header = self.append(Kind.INDEX, message_body(encode_index(self.table, dies)))
        self.commit(header.sequence)
        for dead in dies:
            self.table.waste(dead)
        self.index, self.since_index = header, 0

    def adopt(self, header: SegmentHeader) -> None:
        """A segment was written behind the end by other means."""
        self.end, self.last_sequence = header.end, header.sequence
        self.since_index += 1

    def retire(self, failure: MagnitudeError | None = None) -> None:
        """Another file has taken this one's place. Whoever waits for a sync of this one is served, for the other one
        has all that it has and lasts; or fails, where it is not known to last."""
        with self._syncs:
            self.durable_through = SEQUENCE_MAX if failure is None else self.durable_through
            self._failure = failure
            self._syncs.notify_all()

    def close(self) -> None:
        """Gives the file and its lock back, when no sync runs any more."""
        with self._syncs:
            while self._is_syncing:
                self._syncs.wait()
        self.file.close()

    def fail(self, failure: MagnitudeError) -> None:
        """Ends all writing until the file is opened again: whether it lasts is not known."""
        with self._syncs:
            self._failure = failure
            self._syncs.notify_all()

    def cut(self, end: int) -> None:
        """Ends the log earlier: all from `end` on was found dead. The cut is durable with the next commit."""
        assert self.tail_begin <= end <= self.end, "only a part of the tail is cut off"
        with storage_errors(self.path, "cut"):
            self.file.ftruncate(end)
        self.end, self.index = end, None

    def _begin(self, log_id: int) -> Recovered:
        """Writes the first segment, within one sector. Refuses bytes that are not ours."""
        size = self.file.size()
        if _is_foreign(self.file, self.tail_begin, size):
            raise PreconditionError(
                f"{self.path} has {size - self.tail_begin:,} bytes from offset {self.tail_begin} on that are no "
                "sessions of ours.",
                remedy="They may be of use to somebody: move them, or use --state sidecar.",
                reason="FOREIGN_TAIL",
                file=self.path,
            )
        if size > self.tail_begin:
            self.file.ftruncate(self.tail_begin)
        body = message_body(state_pb2.StoredLog(creator=f"magnitude {__version__}"))
        header = SegmentHeader(
            Kind.LOG,
            log_id,
            self.tail_begin,
            sequence=0,
            durable_through=0,
            body_bytes=body.nbytes,
            envelope_bytes=body.nbytes,
            envelope_crc=crc32c(body.envelope),
            index_offset=0,
            time_ns=self._clock(),
        )
        write_all(self.file, segment_parts(header, body), header.offset)
        self.file.fdatasync()  # now the log lasts, and whatever lies behind the model is known to be ours
        return Recovered(Table(), log_id, header.end, 0, 0, 0)

    def _repair(self, recovered: Recovered) -> None:
        """Steps 5 to 7 of recovery. What is changed here was never live, so that no reader holds it."""
        for offset in recovered.torn:
            write_all(self.file, [bytes(PAGE_BYTES)], offset)
        is_cut = self.file.size() > recovered.end
        if is_cut:
            self.file.ftruncate(recovered.end)
        if is_cut or recovered.torn or recovered.last_sequence > recovered.durable_through:
            self.file.fdatasync()  # now all that was recovered lasts, and none of the rest can be taken for it

    def _cut(self) -> None:
        """Takes off what a failed write left behind the end; it was never a segment."""
        if self.file.size() > self.end:
            self.file.ftruncate(self.end)
        self._is_torn = False

    def _cut_if_possible(self) -> None:
        try:
            self._cut()
        except OSError:
            self._is_torn = True  # the next write tries again first

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise PreconditionError(
                f"{self.path} takes no more saves: an earlier sync failed ({self._failure.message})",
                remedy="Check the disk, then load the model again.",
                reason="STORAGE_FAILED",
                file=self.path,
            )


def _is_foreign(file: File, begin: int, size: int) -> bool:
    """Whether anything lies there but zeros or the torn first segment of ours, which is shorter than a sector."""
    front = file.pread(PAGE_BYTES, begin).rstrip(b"\0")
    is_torn_log = len(front) <= SECTOR_BYTES and MAGIC.startswith(front[: len(MAGIC)])
    return not is_torn_log or any(
        any(file.pread(PAGE_BYTES, position)) for position in range(begin + PAGE_BYTES, size, PAGE_BYTES)
    )
