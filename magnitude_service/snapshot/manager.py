"""StateSnapshotManager: the sessions of one model, saved in its state file and read back.

One manager writes a file; others, in this process or elsewhere, read it (`read_only`). Every method may be called from
any thread. Nothing here knows engine, scheduling or wire.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from magnitude.v1 import snapshot_pb2, state_pb2
from magnitude_service.errors import IntegrityError, MagnitudeError, NotFoundError
from magnitude_service.snapshot import limits
from magnitude_service.snapshot.checksum import Buffer
from magnitude_service.snapshot.listing import Page, list_versions
from magnitude_service.snapshot.options import SnapshotOptions
from magnitude_service.snapshot.record import Content, Kind, encode_state, segment_bytes
from magnitude_service.snapshot.recovery import Finding
from magnitude_service.snapshot.retention import floor_for
from magnitude_service.snapshot.saved_state import AGENT_STATE, KEY_VALUE, PART_PREFIX, SavedState, described
from magnitude_service.snapshot.statistics import StateStatistics
from magnitude_service.snapshot.store import Store, session_not_found
from magnitude_service.snapshot.table import Entry, entry_of, stored_bytes
from magnitude_service.snapshot.upkeep import Compacted, Upkeep
from magnitude_service.snapshot.vfs import FileSystem, OperatingSystem

LOG = logging.getLogger(__name__)

SEGMENTS_WITHOUT_INDEX_MAX = 4096
"""A save writes an index itself where `maintain` did not for so long: opening must stay quick."""


class Durability(enum.Enum):
    """What a save has achieved when it returns."""

    DURABLE = "durable"  # it survives a loss of power
    RELAXED = "relaxed"  # it survives the end of this process; DURABLE within `state_sync_interval_seconds`


class StateSnapshotManager:
    """Saves, restores, lists and deletes versions of a model's sessions."""

    def __init__(
        self,
        model: Path,
        options: SnapshotOptions | None = None,
        *,
        read_only: bool = False,
        file_system: FileSystem | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Opens the state file of a model, and makes a sidecar where there is none.

        *Raises*: PreconditionError: STATE_FILE_LOCKED (another writer), READ_ONLY, STORAGE_FULL, FOREIGN_TAIL,
        NOT_A_STATE_FILE; IncompatibleVersionError; NotFoundError where there is nothing to read.
        """
        self.options = options or SnapshotOptions()
        self._clock = clock
        self._store = Store(model, self.options, file_system or OperatingSystem(), clock=clock, read_only=read_only)
        self._upkeep = Upkeep(self._store)
        self._saves = self._restores = 0  # guarded by the store's lock
        for finding in self._store.findings:
            LOG.warning("%s at offset %d: %s", self.path, finding.offset, finding.problem)

    @property
    def path(self) -> Path:
        """The state file."""
        return self._store.path

    @property
    def findings(self) -> Sequence[Finding]:
        """What was not as it should be when the file was opened; each was logged once."""
        return tuple(self._store.findings)

    def save(
        self,
        header: snapshot_pb2.StateHeader,
        *,
        agent_state: Buffer | None = None,
        parts: Mapping[str, Buffer] | None = None,
        key_value: Buffer | None = None,
        expected_version: int | None = None,
        durability: Durability = Durability.DURABLE,
    ) -> snapshot_pb2.Snapshot:
        """Saves a new version of `header.snapshot.session_id` and returns its description.

        `header` is not changed; version, time, sizes and, where it is 0, the parent version are filled in. Where
        `agent_state` is None, it, its SHA-256 and the parts are taken over from the parent version, or from the latest
        one where that is no more.
        *Raises*: InvalidRequestError; PreconditionError VERSION_MISMATCH where `expected_version` is not the latest (0:
        there is none), STORAGE_FULL, READ_ONLY, STATE_FILE_REPLACED, STORAGE_FAILED (after a failed sync, always);
        ExhaustedError QUOTA_EXCEEDED. Then nothing was saved, and every other version is as it was.
        """
        given = header.snapshot
        session_id = given.session_id
        limits.check_session_id(session_id)
        limits.check_labels(given.labels)
        limits.check_part_names(parts or {})
        contents = None if agent_state is None else _agent_contents(agent_state, parts or {})
        pages = [] if key_value is None else [Content.of(KEY_VALUE, key_value)]  # its CRC is computed without the lock
        with self._store.lock:
            tail = self._store.writer()
            versions = self._store.table.sessions.get(session_id, {})
            latest = max(versions, default=0)
            limits.check_expected(session_id, latest, expected_version)
            made = header
            if contents is None:
                grown_from = versions.get(given.parent_version) or versions.get(latest)
                contents = self._contents_of(grown_from) if grown_from else []
                made = self._with_digest_of(header, grown_from) if grown_from else header
            sizes = limits.agent_bytes(contents), sum(content.nbytes for content in pages)
            made = _described(made, latest, tail.table.next_version(session_id), sizes, self._clock())
            body = encode_state(made, [*contents, *pages])
            version = made.snapshot.version
            floor = floor_for(versions, version, self.options.state_versions_kept)
            if self.options.state_quota_bytes:
                more = stored_bytes(segment_bytes(body.nbytes))
                more -= sum(stored_bytes(entry.length) for entry in versions.values() if entry.version < floor)
                limits.check_quota(tail.table, session_id, more, self.options.state_quota_bytes)
            saved = entry_of(tail.append(Kind.SNAPSHOT, body, version=version, floor=floor, session_id=session_id))
            tail.table.add(saved, floor)
        if durability is Durability.DURABLE:
            tail.commit(saved.sequence)
        if tail.since_index > SEGMENTS_WITHOUT_INDEX_MAX:
            with contextlib.suppress(MagnitudeError):  # the save has succeeded; the next one will say what is wrong
                self._upkeep.write_index()
        with self._store.lock:
            self._store.check_in_place(is_quick=durability is Durability.RELAXED)
            self._saves += 1
        return described(made, saved).snapshot

    def restore(self, session_id: str, version: int | None = None) -> SavedState:
        """A version, whole and checked; the latest where none is named.

        Where the latest is damaged, the newest whole one is returned, and `passed_over` names the damaged ones.
        *Raises*: NotFoundError SESSION_NOT_FOUND, SNAPSHOT_NOT_FOUND; IntegrityError TAIL_CORRUPT.
        """
        passed_over: tuple[int, ...] = ()
        problem: IntegrityError | None = None
        while True:
            with self._store.lock:
                entry = self._entry(session_id, version, passed_over)
                if entry is None:
                    assert problem is not None, "some version was passed over"
                    raise problem
                reader = self._store.reader
                try:
                    saved = self._store.view(entry, passed_over)
                    problem = None
                except IntegrityError as error:
                    problem = error
            problem = problem or reader.problem_of(entry, saved)  # every byte, without the lock
            if problem is None:
                with self._store.lock:
                    self._restores += 1
                return saved
            LOG.warning("%s", problem)
            passed_over += (entry.version,)

    def get(self, session_id: str, version: int | None = None) -> snapshot_pb2.Snapshot:
        """The description of a version, the latest where none is named. Raises as `restore`."""
        with self._store.lock:
            entry = self._entry(session_id, version)
            assert entry is not None, "a session has a version"
            return self._store.reader.header(entry).snapshot

    def list(
        self,
        session_id: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        all_versions: bool = False,
        page_size: int = 100,
        page_token: str = "",
    ) -> Page:
        """Versions by session and version: of one session or of all, the latest or all, with all of these labels.

        A version that is damaged is left out. *Raises*: InvalidRequestError for a page size or token out of bounds.
        """
        with self._store.lock:
            self._store.refresh()
            return list_versions(
                self._store.table, self._store.reader, session_id, labels or {}, all_versions, page_size, page_token
            )

    def delete(self, session_id: str, versions: Sequence[int] = ()) -> tuple[int, int]:
        """Deletes versions, all where none is named; returns how many, and the bytes that compaction will give back.

        When it returns, they do not come back. *Raises*: NotFoundError where the session or one of the versions is not
        there; then nothing was deleted. As `save` where the file cannot be written.
        """
        with self._store.lock:
            tail = self._store.writer()
            live = self._live_versions(session_id)
            for version in versions:
                self._require(live, session_id, version)
            deletion = state_pb2.DeletedVersions(session_id=session_id, versions=sorted(set(versions)))
            deleted, sequence = self._upkeep.delete([deletion])
        tail.commit(sequence)
        with self._store.lock:
            self._store.check_in_place()
        return len(deleted), sum(stored_bytes(entry.length) for entry in deleted)

    def compact(self, keep_versions: int | None = None, *, dry_run: bool = False) -> Compacted:
        """Gives back the bytes of deleted versions; first deletes all but `keep_versions` of each session.

        Saves and restores go on meanwhile. *Raises*: UnavailableError where a compaction runs already; as `save`.
        """
        return self._upkeep.compact(keep_versions, dry_run=dry_run)

    def maintain(self) -> None:
        """Does what is due: syncs RELAXED saves, ends expired sessions, writes an index, compacts. To be called again
        and again, by a thread that may wait; `UpkeepThread` is one."""
        self._upkeep.maintain()

    def statistics(self) -> StateStatistics:
        """What was done since the file was opened, and what it holds. Raises UnavailableError after `close`."""
        with self._store.lock:
            table = self._store.table
            return StateStatistics(
                self._saves, self._restores, self._upkeep.compactions, table.live_bytes, table.dead_bytes
            )

    def interrupt(self) -> None:
        """Lets a compaction that runs end soon, as if it had been killed, and begins no other; before `close`."""
        self._upkeep.stop()

    def close(self) -> None:
        """Makes all saves durable and gives the file back. What was restored stays valid."""
        self._upkeep.stop()
        with self._store.lock:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _entry(self, session_id: str, version: int | None, passed_over: Sequence[int] = ()) -> Entry | None:
        """The version that is asked for, or a session's newest; None where that is among those passed over."""
        self._store.refresh()
        live = self._live_versions(session_id)
        if version is not None:
            return None if version in passed_over else self._require(live, session_id, version)
        newest = max((each for each in live if each not in passed_over) if passed_over else live, default=None)
        return None if newest is None else live[newest]

    def _live_versions(self, session_id: str) -> Mapping[int, Entry]:
        live = self._store.table.sessions.get(session_id)
        if not live:
            limits.check_session_id(session_id)
            raise session_not_found(session_id)
        return live

    def _require(self, live: Mapping[int, Entry], session_id: str, version: int) -> Entry:
        if version not in live:
            kept = ", ".join(map(str, sorted(live)))
            raise NotFoundError(
                f"Session {session_id} has no version {version}; kept are {kept}.",
                remedy="Name one of those, or none for the latest.",
                reason="SNAPSHOT_NOT_FOUND",
                session_id=session_id,
                version=version,
            )
        return live[version]

    def _contents_of(self, entry: Entry) -> Sequence[Content]:
        """The application's bytes of a version, to be written again."""
        saved = self._store.view(entry)
        problem = self._store.reader.problem_of(entry, saved)
        if problem is not None:
            raise problem
        return [Content.of(name, data) for name, data in saved.blobs.items() if name != KEY_VALUE]

    def _with_digest_of(self, header: snapshot_pb2.StateHeader, entry: Entry) -> snapshot_pb2.StateHeader:
        """The header with the SHA-256 of the application's bytes that are written again."""
        made = snapshot_pb2.StateHeader()
        made.CopyFrom(header)
        made.snapshot.agent_state_sha256 = self._store.reader.header(entry).snapshot.agent_state_sha256
        return made


def _agent_contents(agent_state: Buffer, parts: Mapping[str, Buffer]) -> Sequence[Content]:
    return [
        Content.of(AGENT_STATE, agent_state),
        *(Content.of(PART_PREFIX + name, data) for name, data in parts.items()),
    ]


def _described(
    header: snapshot_pb2.StateHeader, latest: int, version: int, sizes: tuple[int, int], now_ns: int
) -> snapshot_pb2.StateHeader:
    """A copy of the header with what the store knows."""
    made = snapshot_pb2.StateHeader()
    made.CopyFrom(header)
    snapshot = made.snapshot
    snapshot.version = version
    if not 0 < snapshot.parent_version < version:
        snapshot.parent_version = latest
    time = snapshot.create_time
    time.seconds, time.nanos = divmod(now_ns, 10**9)
    snapshot.agent_state_bytes, snapshot.key_value_bytes = sizes
    snapshot.stored_bytes = 0
    return made
