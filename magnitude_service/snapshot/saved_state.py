"""What a saved version holds, read from the mapped file: the envelope parsed, the blobs as views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import IntegrityError
from magnitude_service.snapshot.checksum import crc32c
from magnitude_service.snapshot.record import HEADER_BYTES, SegmentHeader, parse_envelope, parse_header
from magnitude_service.snapshot.storage_errors import corrupt, storage_errors
from magnitude_service.snapshot.table import Entry
from magnitude_service.snapshot.vfs import File

AGENT_STATE = "agent_state"
KEY_VALUE = "key_value"
PART_PREFIX = "agent/"

MAP_AHEAD_BYTES = 1 << 30
"""How far beyond the end a file is mapped, so that what is appended soon needs no other mapping."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SavedState:
    """One version, whole: a manager gives it out when every byte of it was checked.

    *Lifetime*: the blobs are views of the mapped file, and stay as they are for as long as this object lives, whatever
    is deleted or compacted meanwhile.
    """

    snapshot: snapshot_pb2.Snapshot
    session: snapshot_pb2.SessionState
    page_layout: snapshot_pb2.PageLayout | None
    blobs: Mapping[str, NDArray[np.uint8]]
    checksums: Mapping[str, int]  # CRC-32C of each blob
    passed_over: tuple[int, ...] = ()  # newer versions that are damaged

    @property
    def agent_state(self) -> NDArray[np.uint8]:
        """The application's own bytes."""
        return self.blobs.get(AGENT_STATE, EMPTY)

    @property
    def parts(self) -> dict[str, NDArray[np.uint8]]:
        """Further bytes of the application's, by name."""
        return {
            name.removeprefix(PART_PREFIX): data for name, data in self.blobs.items() if name.startswith(PART_PREFIX)
        }

    @property
    def key_value(self) -> NDArray[np.uint8] | None:
        """The pages, where they were kept."""
        return self.blobs.get(KEY_VALUE)


EMPTY: NDArray[np.uint8] = np.empty(0, np.uint8)
EMPTY.flags.writeable = False


class StateReader:
    """Reads versions out of one open file."""

    def __init__(self, file: File, path: Path) -> None:
        self._file, self._path = file, path
        self._view: NDArray[np.uint8] | None = None

    def header(self, entry: Entry) -> snapshot_pb2.StateHeader:
        """What a version is, without its blobs. Raises IntegrityError (TAIL_CORRUPT)."""
        segment = self._segment(entry)
        state = parse_envelope(self._envelope(entry, segment), segment)
        if state is None:
            raise self._corrupt(entry, "its envelope does not fit its body")
        return described(state.header, entry)

    def view(self, entry: Entry, passed_over: tuple[int, ...] = ()) -> SavedState:
        """A version with views of its blobs, not checked yet. Raises IntegrityError (TAIL_CORRUPT)."""
        segment = self._segment(entry)
        state = parse_envelope(self._envelope(entry, segment), segment)
        if state is None:
            raise self._corrupt(entry, "its envelope does not fit its body")
        header = described(state.header, entry)
        return SavedState(
            header.snapshot,
            header.session,
            header.page_layout if header.HasField("page_layout") else None,
            {blob.name: self._bytes(entry, blob.offset_bytes, blob.length_bytes) for blob in state.blobs},
            {blob.name: blob.crc32c for blob in state.blobs},
            passed_over,
        )

    def problem_of(self, entry: Entry, saved: SavedState) -> IntegrityError | None:
        """Why a version cannot be trusted: some byte of a blob is not what was saved. Needs no lock."""
        for name, data in saved.blobs.items():
            if crc32c(data) != saved.checksums[name]:
                return self._corrupt(entry, f"the checksum of {name} is wrong")
        return None

    def _segment(self, entry: Entry) -> SegmentHeader:
        block = self._bytes(entry, 0, HEADER_BYTES).tobytes()
        segment = parse_header(block, entry.offset, source=str(self._path))
        if segment is None or segment.sequence != entry.sequence:
            raise self._corrupt(entry, "its segment's header is damaged")
        return segment

    def _envelope(self, entry: Entry, segment: SegmentHeader) -> bytes:
        envelope = self._bytes(entry, HEADER_BYTES, segment.envelope_bytes).tobytes()
        if crc32c(envelope) != segment.envelope_crc:
            raise self._corrupt(entry, "the checksum of its envelope is wrong")
        return envelope

    def _bytes(self, entry: Entry, offset: int, count: int) -> NDArray[np.uint8]:
        """Bytes of an entry's segment, mapped."""
        begin, end = entry.offset + offset, entry.offset + offset + count
        if self._view is None or end > len(self._view):
            with storage_errors(self._path, "mapped"):
                size = self._file.size()
                self._view = self._file.map(size + MAP_AHEAD_BYTES) if end <= size else EMPTY
        if end > len(self._view):
            raise self._corrupt(entry, "the file was cut short")
        return self._view[begin:end]

    def _corrupt(self, entry: Entry, problem: str) -> IntegrityError:
        self._view = None  # a mapping that met a cut file reads as zeros from there on; the next one need not
        return corrupt(
            self._path,
            f"version {entry.version} of session {entry.session_id} at offset {entry.offset} is damaged: {problem}",
            session_id=entry.session_id,
            version=entry.version,
        )


def described(header: snapshot_pb2.StateHeader, entry: Entry) -> snapshot_pb2.StateHeader:
    """The header with what only the segment's place tells."""
    header.snapshot.stored_bytes = entry.length
    return header
