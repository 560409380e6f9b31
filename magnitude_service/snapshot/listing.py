"""Pages of versions, ordered by session and version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import IntegrityError, InvalidRequestError
from magnitude_service.snapshot.limits import SESSION_ID, check_session_id
from magnitude_service.snapshot.saved_state import StateReader
from magnitude_service.snapshot.table import Entry, Table

PAGE_SIZE_MAX: Final = 1000


class Page(NamedTuple):
    """Versions, and what asks for the rest; empty if this is all."""

    snapshots: list[snapshot_pb2.Snapshot]
    next_page_token: str


def list_versions(
    table: Table,
    reader: StateReader,
    session_id: str,
    labels: Mapping[str, str],
    all_versions: bool,
    page_size: int,
    page_token: str,
) -> Page:
    """One page. The token names the last version of the page before, so that saves meanwhile skip nothing."""
    if not 1 <= page_size <= PAGE_SIZE_MAX:
        raise InvalidRequestError(
            f"page_size is {page_size}; it must be 1…{PAGE_SIZE_MAX}.",
            remedy="Ask for smaller pages, one after the other.",
            field="page_size",
        )
    if session_id:
        check_session_id(session_id)
    after = _parse_token(page_token)
    found: list[snapshot_pb2.Snapshot] = []
    for entry in _ordered(table, session_id, all_versions):
        if (entry.session_id, entry.version) <= after:
            continue
        try:
            snapshot = reader.header(entry).snapshot
        except IntegrityError:
            continue
        if any(snapshot.labels.get(key) != value for key, value in labels.items()):
            continue
        if len(found) == page_size:
            return Page(found, f"{found[-1].version}@{found[-1].session_id}")
        found.append(snapshot)
    return Page(found, "")


def _ordered(table: Table, session_id: str, all_versions: bool) -> Iterator[Entry]:
    for id in [session_id] if session_id else sorted(table.sessions):
        versions = table.sessions.get(id, {})
        for version in sorted(versions) if all_versions else [max(versions)] if versions else []:
            yield versions[version]


def _parse_token(token: str) -> tuple[str, int]:
    if not token:
        return "", 0
    version, _, session_id = token.partition("@")
    if not (version.isascii() and version.isdecimal() and len(version) <= 20 and SESSION_ID.fullmatch(session_id)):
        raise InvalidRequestError(
            "page_token is none that an earlier answer gave.", remedy="Begin again without one.", field="page_token"
        )
    return session_id, int(version)
