"""Chunks of a state are read from their bytes as protobuf would read them, or are left to it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from magnitude.sessions import _chunk_of
from magnitude.v1 import snapshot_pb2


@given(
    content=st.binary(min_size=1, max_size=300),
    offset=st.integers(0, 2**40),
    crc=st.integers(1, 2**32 - 1),
    pages=st.booleans(),
)
def test_a_chunk_is_read_as_it_was_written(content: bytes, offset: int, crc: int, pages: bool) -> None:
    name = "key_value" if pages else "agent_state"
    chunk = snapshot_pb2.StateChunk(offset_bytes=offset, content=content, crc32c=crc)
    message = snapshot_pb2.ExportStateResponse(**{name: chunk})  # type: ignore[arg-type]
    assert _chunk_of(message.SerializeToString()) == (name, (offset, content, crc))


def test_any_other_message_is_left_to_protobuf() -> None:
    header = snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id="s"))
    end = snapshot_pb2.StateEnd(agent_state_bytes=1)
    bare = snapshot_pb2.StateChunk(content=b"no checksum: it is zero")
    for message in (
        snapshot_pb2.ExportStateResponse(),
        snapshot_pb2.ExportStateResponse(header=header),
        snapshot_pb2.ExportStateResponse(end=end),
        snapshot_pb2.ExportStateResponse(agent_state=bare),
    ):
        assert _chunk_of(message.SerializeToString()) is None


CHUNK = snapshot_pb2.ExportStateResponse(
    agent_state=snapshot_pb2.StateChunk(offset_bytes=7, content=b"content", crc32c=9)
).SerializeToString()


@given(
    message=st.binary(max_size=40).map(lambda tail: CHUNK[:2] + tail)
    | st.integers(0, len(CHUNK) - 1).map(lambda end: CHUNK[:end])
)
@example(message=b"\x12" + b"\xff" * 12)
@example(message=CHUNK + b"\x12\x00")
def test_damaged_bytes_are_never_read_past_their_end(message: bytes) -> None:
    found = _chunk_of(message)
    if found is not None:
        name, chunk = found
        parsed = snapshot_pb2.ExportStateResponse.FromString(message)
        assert getattr(parsed, name).content == chunk.content
