"""Which versions a session keeps, which sessions end, and what a prefix may hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from magnitude_service.snapshot.table import Entry, Table, stored_bytes


def floor_for(versions: Iterable[int], new: int, versions_kept: int) -> int:
    """The oldest version to keep once `new` is there; 0 where all are kept."""
    if versions_kept == 0:
        return 0
    kept = [*sorted(versions), new][-versions_kept:]
    return kept[0]


def superfluous(table: Table, versions_kept: int) -> dict[str, Sequence[int]]:
    """Of each session, all but so many of the newest versions."""
    found = {id: sorted(versions)[:-versions_kept] for id, versions in table.sessions.items()}
    return {id: versions for id, versions in found.items() if versions}


def expired(table: Table, now_ns: int, ttl_seconds: float) -> list[str]:
    """Sessions that were not saved for `ttl_seconds`; none where that is 0."""
    if ttl_seconds == 0:
        return []
    oldest = now_ns - int(ttl_seconds * 1e9)
    return [id for id, versions in table.sessions.items() if _newest(versions.values()).time_ns < oldest]


def prefix_of(session_id: str) -> str:
    """What sessions of one owner share: all up to the first '/', or the whole id."""
    return session_id.split("/", 1)[0]


def prefix_bytes(table: Table, prefix: str) -> int:
    """Live bytes of all sessions of a prefix."""
    return sum(
        stored_bytes(entry.length)
        for id, versions in table.sessions.items()
        if prefix_of(id) == prefix
        for entry in versions.values()
    )


def _newest(entries: Iterable[Entry]) -> Entry:
    return max(entries, key=lambda entry: entry.sequence)
