"""What is live: every session's versions, and which segments are dead. Pure: follows the log, touches no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from magnitude.v1 import state_pb2
from magnitude_service.snapshot.record import PAGE_BYTES, SegmentHeader


class Entry(NamedTuple):
    """A live version and where its segment lies."""

    session_id: str
    version: int
    sequence: int
    offset: int
    length: int
    time_ns: int


class Dead(NamedTuple):
    """A dead segment that still takes space."""

    sequence: int
    offset: int
    length: int
    since_ns: int


GIVEN_SESSIONS_MAX = 16_384
"""Of so many sessions that are deleted altogether the numbers are remembered: a megabyte of an index at most."""

FREE_AT_ONCE = 0
"""`since_ns` of an INDEX: nobody holds one for longer than it takes to read it."""


def entry_of(header: SegmentHeader) -> Entry:
    """The entry of a SNAPSHOT."""
    return Entry(header.session_id, header.version, header.sequence, header.offset, header.length, header.time_ns)


def stored_bytes(length: int) -> int:
    """What a segment takes on disk: whole blocks."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES


@dataclass(slots=True)
class Table:
    """The state of a log. `sessions[id]` holds live versions, oldest first; a session without any is not there.
    `given[id]` is the largest number that was ever given, where that version is deleted; deleted last stands last."""

    sessions: dict[str, dict[int, Entry]] = field(default_factory=dict)
    dead: list[Dead] = field(default_factory=list)
    live_bytes: int = 0
    dead_bytes: int = 0
    given: dict[str, int] = field(default_factory=dict)

    def next_version(self, session_id: str) -> int:
        """A number that no version of the session ever had, as far as the log tells."""
        return max(max(self.sessions.get(session_id, ()), default=0), self.given.get(session_id, 0)) + 1

    def add(self, entry: Entry, floor: int) -> None:
        """A SNAPSHOT: adds its version; those below the floor die. A version written again replaces the first."""
        session_id, added = entry.session_id, entry.version
        if self.given and self.given.get(session_id, added) < added:
            del self.given[session_id]
        versions = self.sessions.setdefault(session_id, {})
        for version in [each for each in versions if each < floor or each == added]:
            self.bury(versions.pop(version), entry.time_ns)
        versions[added] = entry
        self.live_bytes += stored_bytes(entry.length)

    def delete(self, session_id: str, versions: Iterable[int], time_ns: int) -> list[Entry]:
        """Some versions die, or all where none is named; returns those that were there."""
        live = self.sessions.get(session_id, {})
        largest = self.next_version(session_id) - 1
        entries = [live.pop(version) for version in (list(versions) or list(live)) if version in live]
        for entry in entries:
            self.bury(entry, time_ns)
        if not live:
            self.sessions.pop(session_id, None)
        if entries:
            self.remember(session_id, largest)
        return entries

    def remember(self, session_id: str, version: int) -> None:
        """A number is not given again, as long as few enough sessions are deleted altogether after this one."""
        version = max(version, self.given.pop(session_id, 0))
        if version > max(self.sessions.get(session_id, ()), default=0):  # else a live version says as much
            self.given[session_id] = version
        if len(self.given) > GIVEN_SESSIONS_MAX + len(self.sessions):
            del self.given[next(id for id in self.given if id not in self.sessions)]

    def bury(self, entry: Entry, time_ns: int) -> None:
        """A live segment, already taken out of its session, is dead."""
        self.live_bytes -= stored_bytes(entry.length)
        self.waste(Dead(entry.sequence, entry.offset, entry.length, time_ns))

    def waste(self, dead: Dead) -> None:
        """A segment that is dead takes space."""
        self.dead.append(dead)
        self.dead_bytes += stored_bytes(dead.length)

    def forget(self, freed: Sequence[Dead]) -> None:
        """Dead segments whose space was given back."""
        gone = set(freed)
        self.dead = [dead for dead in self.dead if dead not in gone]
        self.dead_bytes -= sum(stored_bytes(dead.length) for dead in gone)

    def entries(self) -> Iterator[Entry]:
        """Every live version, by session."""
        for versions in self.sessions.values():
            yield from versions.values()

    def in_file_order(self) -> list[Entry]:
        """Every live version, oldest segment first."""
        return sorted(self.entries(), key=lambda entry: entry.sequence)


def encode_index(table: Table, dies: Sequence[Dead] = ()) -> state_pb2.StoredIndex:
    """The body of an INDEX. `dies`: segments that are dead as soon as it lasts."""
    entries = table.in_file_order()
    dead = sorted([*table.dead, *dies])
    return state_pb2.StoredIndex(
        session_ids=[entry.session_id for entry in entries],
        versions=[entry.version for entry in entries],
        sequences=[entry.sequence for entry in entries],
        offsets=[entry.offset for entry in entries],
        lengths=[entry.length for entry in entries],
        times_ns=[entry.time_ns for entry in entries],
        dead_sequences=[each.sequence for each in dead],
        dead_offsets=[each.offset for each in dead],
        dead_lengths=[each.length for each in dead],
        dead_since_ns=[each.since_ns for each in dead],
        given_session_ids=table.given,
        given_versions=table.given.values(),
    )


def table_of(index: state_pb2.StoredIndex) -> Table | None:
    """What an INDEX says; None where its columns do not fit together."""
    columns: list[list[Any]] = [
        list(index.session_ids),
        *map(list, (index.versions, index.sequences, index.offsets, index.lengths, index.times_ns)),
    ]
    dead_columns: list[list[int]] = [
        *map(list, (index.dead_sequences, index.dead_offsets, index.dead_lengths, index.dead_since_ns))
    ]
    given = (index.given_session_ids, index.given_versions)
    if any(len(set(map(len, each))) > 1 for each in (columns, dead_columns, given)):
        return None
    table = Table(dead=list(map(Dead._make, zip(*dead_columns, strict=True))), given=dict(zip(*given, strict=True)))
    for entry in map(Entry._make, zip(*columns, strict=True)):
        table.sessions.setdefault(entry.session_id, {})[entry.version] = entry
    table.live_bytes = sum(map(stored_bytes, index.lengths))
    table.dead_bytes = sum(map(stored_bytes, index.dead_lengths))
    return table
