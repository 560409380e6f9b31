"""Answers with large bytes, put together as protobuf would write them: from views of the mapped file with one copy.

Messages would copy them three times more: into a field, into the message around it, and out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from magnitude.v1 import snapshot_pb2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VARINT, DELIMITED, FIXED32 = 0, 2, 5


def get_response(snapshot: snapshot_pb2.Snapshot, agent_state: NDArray[np.uint8]) -> bytes:
    """A GetResponse with the application's bytes."""
    front = snapshot_pb2.GetResponse(snapshot=snapshot).SerializeToString()
    if agent_state.nbytes == 0:
        return front
    number = snapshot_pb2.GetResponse.AGENT_STATE_FIELD_NUMBER
    return b"".join((front, tag(number, DELIMITED), varint(agent_state.nbytes), agent_state.data))


def export_response(number: int, offset: int, content: NDArray[np.uint8], crc: int | None = None) -> bytes:
    """An ExportStateResponse whose field `number` is a StateChunk: some bytes with their place and CRC-32C, which is
    computed where it is not known."""
    chunk = snapshot_pb2.StateChunk
    crc = google_crc32c.value(content) if crc is None else crc  # it takes no memoryview
    front = tag(chunk.OFFSET_BYTES_FIELD_NUMBER, VARINT) + varint(offset) if offset else b""
    front += tag(chunk.CONTENT_FIELD_NUMBER, DELIMITED) + varint(content.nbytes)
    end = tag(chunk.CRC32C_FIELD_NUMBER, FIXED32) + crc.to_bytes(4, "little") if crc else b""
    chunk_bytes = len(front) + content.nbytes + len(end)
    return b"".join((tag(number, DELIMITED), varint(chunk_bytes), front, content.data, end))


def tag(number: int, kind: int) -> bytes:
    """What stands before a field."""
    return varint(number << 3 | kind)


def varint(value: int) -> bytes:
    """Protobuf's form of a number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
