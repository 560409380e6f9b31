"""Segments of the state file: encodes and parses them. Pure: touches no file. FORMAT.md draws the layout.

offset  size
0       256   header
256     B     body: envelope, then (padding, contents) for each blob
…       40    end mark, at a multiple of 8
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from magnitude.v1 import state_pb2
from magnitude_service.errors import IncompatibleVersionError, InvalidRequestError
from magnitude_service.snapshot import _snapshot
from magnitude_service.snapshot.checksum import Buffer, crc32c, memory

FORMAT_VERSION: Final = 1
ALIGNMENT: Final = 64 << 10
MAGIC: Final = b"MAGSTATE"
END_MAGIC: Final = b"MAGSTEND"
HEADER: Final = struct.Struct("<8sHHIQQQQQIIQQQQI24s128sI")
END_MARK: Final = struct.Struct("<8sQQQII")
HEADER_BYTES: Final = HEADER.size
END_MARK_BYTES: Final = END_MARK.size
CRC: Final = struct.Struct("<I")

BODY_BYTES_MAX: Final = (1 << 31) - 1
ENVELOPE_BYTES_MAX: Final = 64 << 20
BLOBS_MAX: Final = 64
SESSION_ID_BYTES_MAX: Final = 128
SEQUENCE_MAX: Final = (1 << 63) - 1

PADDING_TAG: Final = bytes([14 << 3 | 2])
CONTENTS_TAG: Final = bytes([15 << 3 | 2])
BLOB_ALIGNMENT: Final = 64
PAGE_BYTES: Final = 4096
"""A blob of at least so many bytes begins at a multiple of it."""


class Kind(enum.IntEnum):
    """What a segment says."""

    LOG = 1
    SNAPSHOT = 2
    DELETION = 3
    INDEX = 4


KINDS: Final = frozenset(int(kind) for kind in Kind)


class SegmentHeader(NamedTuple):
    """The first 256 bytes of a segment."""

    kind: int
    log_id: int
    offset: int
    sequence: int
    durable_through: int
    body_bytes: int
    envelope_bytes: int
    envelope_crc: int
    index_offset: int
    time_ns: int
    version: int = 0
    floor: int = 0
    session_id: str = ""

    @property
    def length(self) -> int:
        """Bytes of the whole segment, end mark included."""
        return segment_bytes(self.body_bytes)

    @property
    def end(self) -> int:
        """Where its end mark ends."""
        return self.offset + segment_bytes(self.body_bytes)


class Body(NamedTuple):
    """A body ready to be written: parts in order, bytes each, the envelope first; nothing large is copied into one."""

    parts: tuple[bytes | memoryview, ...]
    nbytes: int

    @property
    def envelope(self) -> bytes:
        """The first part."""
        return self.parts[0]  # type: ignore[return-value]  # encode_state and message_body make it


def aligned(position: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment`, or the position itself."""
    return -(-position // alignment) * alignment


def segment_bytes(body_bytes: int) -> int:
    """Bytes of a segment with such a body."""
    return (HEADER_BYTES + body_bytes + 7 & ~7) + END_MARK_BYTES


def encode_header(header: SegmentHeader) -> bytes:
    """256 bytes."""
    key = header.session_id.encode()
    assert len(key) <= SESSION_ID_BYTES_MAX, "session ids are checked before"
    front = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        header.kind,
        0,
        header.log_id,
        header.offset,
        header.sequence,
        header.durable_through,
        header.body_bytes,
        header.envelope_bytes,
        header.envelope_crc,
        header.index_offset,
        header.time_ns,
        header.version,
        header.floor,
        len(key),
        bytes(24),
        key,
        0,
    )[: -CRC.size]
    return front + CRC.pack(crc32c(front))


def parse_header(block: bytes, offset: int, *, source: str = "") -> SegmentHeader | None:
    """The header in the first 256 bytes of `block`, which were read at `offset`; None where there is no right one.

    *Raises*: IncompatibleVersionError for a right header that a newer program wrote.
    """
    if len(block) < HEADER_BYTES or block[:8] != MAGIC:
        return None
    fields = HEADER.unpack_from(block)
    _, version, kind, flags, *numbers, key_bytes, _, key, crc = fields
    if crc != crc32c(block[: HEADER_BYTES - CRC.size]) or numbers[1] != offset:
        return None
    if version != FORMAT_VERSION or kind not in KINDS or flags != 0:
        raise IncompatibleVersionError(
            f"{source or 'The state file'} has a segment of format version {version}, kind {kind}, flags {flags:#x} at "
            f"offset {offset}; this program knows version {FORMAT_VERSION}, kinds 1…{max(KINDS)} and no flags.",
            remedy="A newer magnitude wrote it: use that.",
            file=source,
            offset=offset,
        )
    log_id, _, sequence, durable, body_bytes, envelope_bytes, envelope_crc, index_offset, time_ns, of, floor = numbers
    if (
        envelope_bytes > min(body_bytes, ENVELOPE_BYTES_MAX)
        or body_bytes > BODY_BYTES_MAX
        or sequence > SEQUENCE_MAX
        or key_bytes > SESSION_ID_BYTES_MAX
        or not key.isascii()
    ):
        return None
    return SegmentHeader(
        kind,
        log_id,
        offset,
        sequence,
        durable,
        body_bytes,
        envelope_bytes,
        envelope_crc,
        index_offset,
        time_ns,
        of,
        floor,
        key[:key_bytes].decode("ascii"),
    )


def encode_end(header: SegmentHeader) -> bytes:
    """The zeros before the end mark, and the mark."""
    gap = -(HEADER_BYTES + header.body_bytes) % 8
    front = END_MARK.pack(END_MAGIC, header.log_id, header.offset, header.sequence, 0, 0)[: -CRC.size]
    return b"%b%b%b" % (bytes(gap), front, CRC.pack(crc32c(front)))


class EndMark(NamedTuple):
    """The last 40 bytes of a segment."""

    log_id: int
    offset: int
    sequence: int


def parse_end_mark(block: bytes) -> EndMark | None:
    """The end mark in 40 bytes; None where it is not right."""
    if len(block) != END_MARK_BYTES or block[:8] != END_MAGIC:
        return None
    _, log_id, offset, sequence, _, crc = END_MARK.unpack(block)
    return EndMark(log_id, offset, sequence) if crc == crc32c(block[: -CRC.size]) else None


def message_body(message: Message) -> Body:
    """The body of a segment that is all envelope."""
    envelope = message.SerializeToString(deterministic=True)
    _check_size("The envelope", len(envelope), ENVELOPE_BYTES_MAX)
    return Body((envelope,), len(envelope))


class Content(NamedTuple):
    """A blob to write: its bytes, and their CRC, computed once and before any lock is taken."""

    name: str
    data: bytes | memoryview
    nbytes: int
    crc: int

    @classmethod
    def of(cls, name: str, data: Buffer) -> Content:
        """Computes the CRC. *Lifetime*: keeps `data`, which must not change until it is written."""
        content = data if type(data) is bytes else memory(data)
        return cls(name, content, len(content), crc32c(content))


def encode_state(header: Message, contents: Sequence[Content]) -> Body:
    """The body of a SNAPSHOT: a StoredState with `header` (a StateHeader) and the blobs, none of them copied.

    *Raises*: InvalidRequestError where it exceeds a limit of the format.
    """
    _check_size("The number of blobs", len(contents), BLOBS_MAX)
    body = Body(*_snapshot.encode_body(header.SerializeToString(deterministic=True), contents))
    _check_size("The envelope", len(body.envelope), ENVELOPE_BYTES_MAX)
    _check_size("The state", body.nbytes, BODY_BYTES_MAX)
    return body


def encode_glue(position: int, content_bytes: int) -> bytes:
    """What lies between the end of the envelope or of a blob, at `position` from the segment's start, and the next
    blob: a padding field, tag and length."""
    front = CONTENTS_TAG + varint(content_bytes)
    alignment = PAGE_BYTES if content_bytes >= PAGE_BYTES else BLOB_ALIGNMENT
    gap = -(position + len(front)) % alignment
    while True:
        for length_bytes in (1, 2):
            zeros = gap - 1 - length_bytes
            if zeros >= 0 and len(varint(zeros)) == length_bytes:
                return PADDING_TAG + varint(zeros) + bytes(zeros) + front
        gap += alignment  # 0, 1 and 130 bytes cannot be filled by one field


def varint(value: int) -> bytes:
    """Protobuf's form of a number, without superfluous bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def parse_envelope(envelope: bytes, header: SegmentHeader) -> state_pb2.StoredState | None:
    """The envelope of a SNAPSHOT whose CRC was found right; None where its blobs do not lie as they must."""
    try:
        state = state_pb2.StoredState.FromString(envelope)
    except DecodeError:
        return None
    position = HEADER_BYTES + header.envelope_bytes
    for blob, glue_offset, glue in glue_of(state.blobs, header):
        if glue_offset != position or blob.offset_bytes != glue_offset + len(glue):
            return None
        position = blob.offset_bytes + blob.length_bytes
    return state if position == HEADER_BYTES + header.body_bytes else None


def glue_of(
    blobs: Sequence[state_pb2.StoredBlob], header: SegmentHeader
) -> Iterator[tuple[state_pb2.StoredBlob, int, bytes]]:
    """Each blob, where the glue before it begins, and what that must be."""
    position = HEADER_BYTES + header.envelope_bytes
    for blob in blobs:
        yield blob, position, encode_glue(position, blob.length_bytes)
        position = blob.offset_bytes + blob.length_bytes


def segment_parts(header: SegmentHeader, body: Body) -> list[bytes | memoryview]:
    """What a gathered write takes, in order. Short neighbours are joined, since each part costs as much as a copy."""
    return _snapshot.segment_parts(header, body.parts)


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidRequestError(
            f"{what} is {size:,}; at most {limit:,} fit into a snapshot.",
            remedy="Keep large results in files of your own, and their names in the state.",
            field="agent_state",
        )
