"""What keeps a state file small and quick to open: deletions, indexes, compaction, and when each is due."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnitude.v1 import state_pb2
from magnitude_service.errors import MagnitudeError, UnavailableError
from magnitude_service.snapshot.compaction import SidecarCompaction, free_slowly, freeable, punch
from magnitude_service.snapshot.record import Kind, message_body
from magnitude_service.snapshot.retention import expired, superfluous
from magnitude_service.snapshot.store import Store
from magnitude_service.snapshot.table import Dead, Entry, stored_bytes

LOG = logging.getLogger(__name__)

INDEX_INTERVAL_SEGMENTS = 1024
"""Segments after which `maintain` writes an index."""

CATCH_UP_ROUNDS_MAX = 4
"""How often compaction copies what came meanwhile before it holds saves back for the rest."""

FREEING_SECONDS_MAX = 10
"""An old file is given back at the rate of copying, or faster where that would take longer: else files would grow
faster than they are given back."""

COMPACTION_RETRY_SECONDS = 60.0
"""After a compaction that failed (on a full disk, say) `maintain` begins no other for so long."""


class Compacted(NamedTuple):
    """What a compaction gave back, or would."""

    bytes_before: int
    bytes_after: int
    dropped_versions: int


class Pace:
    """Keeps a stream of bytes at a rate: waits where it was faster."""

    def __init__(self, bytes_per_second: int, wait: Callable[[float], object]) -> None:
        self._bytes_per_second, self._wait = bytes_per_second, wait
        self._due = time.monotonic()

    def __call__(self, count: int) -> None:
        """So many bytes went by."""
        now = time.monotonic()
        self._due = max(self._due, now) + count / self._bytes_per_second
        if self._due > now:
            self._wait(self._due - now)


class Upkeep:
    """Works on one store; of everything that takes long, one runs at a time."""

    def __init__(self, store: Store) -> None:
        self.compactions = 0
        """Those that have given something back or found nothing to give."""
        self._store = store
        self._running = threading.Lock()
        self._stopping = threading.Event()
        self._synced = time.monotonic()
        self._compact_not_before = 0.0

    def stop(self) -> None:
        """Lets a running compaction end soon, as if it had been killed, and waits for that."""
        self._stopping.set()
        with self._running:
            pass

    def maintain(self) -> None:
        """See StateSnapshotManager."""
        options, now = self._store.options, time.monotonic()
        with self._store.lock:
            self._store.writer()
            self._store.check_in_place()
        self._sync_if_due()
        self._expire()
        if self._store.writer().since_index >= INDEX_INTERVAL_SEGMENTS:
            self.write_index()
        may_compact = options.state_auto_compact and not self._running.locked() and now >= self._compact_not_before
        if may_compact and self._is_compaction_due():
            self._compact_not_before = now + COMPACTION_RETRY_SECONDS
            self.compact(None)
            self._compact_not_before = 0.0

    def _sync_if_due(self) -> None:
        """Makes RELAXED saves durable, once in an interval."""
        now = time.monotonic()
        if now - self._synced >= self._store.options.state_sync_interval_seconds:
            self._synced = now
            tail = self._store.writer()
            tail.commit(tail.last_sequence)

    def write_index(self) -> None:
        """Writes an index now."""
        with self._store.lock:
            self._store.writer().write_index()

    def delete(self, deletions: Sequence[state_pb2.DeletedVersions]) -> tuple[list[Entry], int]:
        """Appends a DELETION, with the store's lock held; returns what died, and the number to commit."""
        tail = self._store.writer()
        header = tail.append(Kind.DELETION, message_body(state_pb2.StoredDeletion(deletions=deletions)))
        dead = [
            entry for each in deletions for entry in tail.table.delete(each.session_id, each.versions, header.time_ns)
        ]
        tail.table.waste(Dead(header.sequence, header.offset, header.length, header.time_ns))
        return dead, header.sequence

    def compact(self, keep_versions: int | None, *, dry_run: bool = False) -> Compacted:
        """See StateSnapshotManager."""
        if not self._running.acquire(blocking=False):
            raise UnavailableError(
                f"{self._store.path} is being compacted already.",
                remedy="Wait for that one to end.",
                reason="COMPACTING",
                retry_after_seconds=5,
            )
        try:
            compacted = self._compact(keep_versions, dry_run)
            self.compactions += not dry_run
            return compacted
        finally:
            self._running.release()

    def _is_compaction_due(self) -> bool:
        """Whether it would give back enough. Of a model's tail, what is held or dead too shortly does not count."""
        store, options = self._store, self._store.options
        with store.lock:
            table = store.table
            freed_bytes = table.dead_bytes
            if not store.is_sidecar:
                latest_ns = store.clock() - int(options.state_punch_after_seconds * 1e9)
                freed_bytes = sum(stored_bytes(each.length) for each in freeable(table, store.held(), latest_ns))
            all_bytes = table.live_bytes + table.dead_bytes
        is_enough = freed_bytes >= options.state_compact_min_bytes
        return is_enough and freed_bytes > options.state_compact_dead_ratio * all_bytes

    def _compact(self, keep_versions: int | None, dry_run: bool) -> Compacted:
        with self._store.lock:
            table, tail = self._store.table, self._store.writer()
            before = table.live_bytes + table.dead_bytes
            drop = superfluous(table, keep_versions) if keep_versions else {}
            dropped = sum(map(len, drop.values()))
            if dry_run:
                entries = [table.sessions[id][version] for id, versions in drop.items() for version in versions]
                return Compacted(
                    before, table.live_bytes - sum(stored_bytes(entry.length) for entry in entries), dropped
                )
            if drop:
                named = [state_pb2.DeletedVersions(session_id=id, versions=each) for id, each in drop.items()]
                self.delete(named)
        if drop:
            tail.commit(tail.last_sequence)
        if self._store.is_sidecar:
            self._replace_sidecar()
        else:
            with self._store.lock:
                after = self._store.options.state_punch_after_seconds
                punch(self._store.writer(), self._store.held(), self._store.clock(), after)
        table = self._store.table
        return Compacted(before, table.live_bytes + table.dead_bytes, dropped)

    def _replace_sidecar(self) -> None:
        store = self._store
        pace = Pace(store.options.state_compact_bytes_per_second, self._wait)
        with store.lock:
            compaction = SidecarCompaction(store.file_system, store.writer(), clock=store.clock, pace=pace)
        try:
            for _ in range(CATCH_UP_ROUNDS_MAX):
                with store.lock:
                    entries = compaction.missing(store.table.entries())
                if not entries:
                    break
                compaction.copy(entries)
            compaction.settle()
            with store.lock:
                old = store.writer()
                new, failure = compaction.replace()
                store.replace(new, failure)
        except BaseException:
            compaction.abandon()
            raise
        try:
            if failure is not None:  # the old file may have its name again when power was lost
                raise failure
            with contextlib.suppress(UnavailableError):  # the store is being closed: the rest is freed at once
                rate = max(store.options.state_compact_bytes_per_second, old.end // FREEING_SECONDS_MAX)
                free_slowly(old.file, Pace(rate, self._wait))
        finally:
            old.close()

    def _expire(self) -> None:
        with self._store.lock:
            ids = expired(self._store.table, self._store.clock(), self._store.options.state_ttl_seconds)
            if not ids:
                return
            _, sequence = self.delete([state_pb2.DeletedVersions(session_id=id) for id in ids])
            tail = self._store.writer()
        tail.commit(sequence)

    def _wait(self, seconds: float) -> None:
        self._sync_if_due()  # the thread that syncs may be the one that compacts
        if self._stopping.wait(seconds):
            raise UnavailableError(
                f"{self._store.path} is being closed; its compaction was given up.",
                remedy="Compact it when it is open again: nothing is lost meanwhile.",
                reason="CLOSED",
            )


class UpkeepThread:
    """Calls `maintain` at an interval until it is stopped. A failure is logged, and the next interval tries again."""

    def __init__(self, maintain: Callable[[], None], interval_seconds: float) -> None:
        self._maintain, self._interval_seconds = maintain, interval_seconds
        self._stopping = threading.Event()
        self._last_failure = ""
        self._thread = threading.Thread(target=self._run, name="state-upkeep", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the round that runs."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            try:
                self._maintain()
                self._last_failure = ""
            except MagnitudeError as error:
                if str(error) != self._last_failure:  # once: what does not pass would fill the log
                    LOG.warning("the upkeep of a state file failed: %s", error)
                self._last_failure = str(error)
