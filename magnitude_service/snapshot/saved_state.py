"""What a saved version holds, read from the mapped file: the envelope parsed, the blobs as views."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from magnitude.v1 import snapshot_pb2, state_pb2
from magnitude_service.errors import IntegrityError
from magnitude_service.snapshot.checksum import crc32c, crc32c_of_pieces
from magnitude_service.snapshot.record import HEADER_BYTES, SegmentHeader, parse_envelope, parse_header
from magnitude_service.snapshot.storage_errors import corrupt, storage_errors
from magnitude_service.snapshot.table import Entry
from magnitude_service.snapshot.vfs import File

AGENT_STATE = "agent_state"
KEY_VALUE = "key_value"
PART_PREFIX = "agent/"

PIECE_BYTES = 1 << 20
"""A version also tells the CRC of each such piece: who sends it in chunks need not compute it again."""

MAP_AHEAD_BYTES = 1 << 30
"""How far beyond the end a file is mapped, so that what is appended soon needs no other mapping."""


class Front(NamedTuple):
    """Header and envelope of a segment, as they were found right. While they have the same bytes, where the blobs lie
    need not be worked out again."""

    nbytes: int
    crc: int
    places: Mapping[str, tuple[int, int]]  # of each blob: where it begins in the segment, and its bytes
    checksums: Mapping[str, int]  # CRC-32C of each blob


class SavedState:
    """One version, whole: a manager gives it out when every byte of it was checked.

    *Lifetime*: the blobs are views of the mapped file, and stay as they are for as long as this object lives, whatever
    is deleted or compacted meanwhile.
    """

    __slots__ = (
        "__weakref__",
        "_entry",
        "_envelope",
        "_header",
        "blobs",
        "checksums",
        "passed_over",
        "piece_checksums",
    )

    def __init__(
        self,
        entry: Entry,
        envelope: bytes,
        blobs: Mapping[str, NDArray[np.uint8]],
        checksums: Mapping[str, int],
        passed_over: tuple[int, ...] = (),
    ) -> None:
        """`checksums`: CRC-32C of each blob. `passed_over`: newer versions that are damaged."""
        self._entry, self._envelope, self.blobs, self.checksums = entry, envelope, blobs, checksums
        self.passed_over = passed_over
        self.piece_checksums: dict[str, list[int]] = {}  # of each mebibyte of a blob, once it is checked
        self._header: snapshot_pb2.StateHeader | None = None

    @property
    def sequence(self) -> int:
        """Number of its segment."""
        return self._entry.sequence

    @property
    def header(self) -> snapshot_pb2.StateHeader:
        """All but the blobs; parsed when it is first asked for, for not everybody needs it."""
        if self._header is None:
            self._header = described(state_pb2.StoredState.FromString(self._envelope).header, self._entry)
        return self._header

    @property
    def snapshot(self) -> snapshot_pb2.Snapshot:
        """What it is."""
        return self.header.snapshot

    @property
    def session(self) -> snapshot_pb2.SessionState:
        """Tokens, and where sampling and text stood."""
        return self.header.session

    @property
    def page_layout(self) -> snapshot_pb2.PageLayout | None:
        """Form of the pages, where they were kept."""
        return self.header.page_layout if self.header.HasField("page_layout") else None

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

FRONTS_MAX = 4096
"""How many fronts are remembered: some hundred bytes each."""


class StateReader:
    """Reads versions out of one open file."""

    def __init__(self, file: File, path: Path) -> None:
        self._file, self._path = file, path
        self._view: NDArray[np.uint8] = EMPTY
        self._fronts: dict[int, Front] = {}  # by sequence number

    def header(self, entry: Entry) -> snapshot_pb2.StateHeader:
        """What a version is, without its blobs. Raises IntegrityError (TAIL_CORRUPT)."""
        _, envelope = self._front(entry)
        return described(state_pb2.StoredState.FromString(envelope).header, entry)

    def view(self, entry: Entry, passed_over: tuple[int, ...] = ()) -> SavedState:
        """A version with views of its blobs, not checked yet. Raises IntegrityError (TAIL_CORRUPT)."""
        front, envelope = self._front(entry)
        blobs = {name: self._bytes(entry, offset, count) for name, (offset, count) in front.places.items()}
        return SavedState(entry, envelope, blobs, front.checksums, passed_over)

    def problem_of(self, entry: Entry, saved: SavedState) -> IntegrityError | None:
        """Why a version cannot be trusted: some byte of a blob is not what was saved. Needs no lock."""
        for name, data in saved.blobs.items():
            crc, saved.piece_checksums[name] = crc32c_of_pieces(data, PIECE_BYTES)
            if crc != saved.checksums[name]:
                return self._corrupt(entry, f"the checksum of {name} is wrong")
        return None

    def _front(self, entry: Entry) -> tuple[Front, bytes]:
        """Where the blobs lie, and the envelope: every byte of header and envelope is checked, each time."""
        front = self._fronts.get(entry.sequence)
        if front is not None:
            data = self._bytes(entry, 0, front.nbytes)
            if crc32c(data) == front.crc:
                return front, data[HEADER_BYTES:].tobytes()
        segment = self._segment(entry)
        envelope = self._envelope(entry, segment)
        state = parse_envelope(envelope, segment)
        if state is None:
            raise self._corrupt(entry, "its envelope does not fit its body")
        nbytes = HEADER_BYTES + segment.envelope_bytes
        places = {blob.name: (blob.offset_bytes, blob.length_bytes) for blob in state.blobs}
        checksums = {blob.name: blob.crc32c for blob in state.blobs}
        front = Front(nbytes, crc32c(self._bytes(entry, 0, nbytes)), places, checksums)
        if len(self._fronts) == FRONTS_MAX:
            self._fronts.clear()
        self._fronts[entry.sequence] = front
        return front, envelope

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
        if end > len(self._view):
            with storage_errors(self._path, "mapped"):
                size = self._file.size()
                self._view = self._file.map(size + MAP_AHEAD_BYTES) if end <= size else EMPTY
        if end > len(self._view):
            raise self._corrupt(entry, "the file was cut short")
        return self._view[begin:end]

    def _corrupt(self, entry: Entry, problem: str) -> IntegrityError:
        self._view = EMPTY  # a mapping that met a cut file reads as zeros from there on; the next one need not
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
