"""What is put together by hand is what protobuf would have written."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.v1 import snapshot_pb2
from magnitude_service.server import limits, state_streams
from magnitude_service.server.state_bytes import export_response, get_response
from magnitude_service.server.text_workers import TextWorkers
from magnitude_service.server.wire import serializer
from magnitude_service.snapshot import StateSnapshotManager
from tests.support import gguf_bytes

CHUNK_BYTES = 1000


def bytes_of(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)


@given(content=st.binary(max_size=300), session_id=st.text("abc", max_size=9))
def test_a_get_response_is_what_protobuf_writes(content: bytes, session_id: str) -> None:
    snapshot = snapshot_pb2.Snapshot(session_id=session_id, version=3)
    expected = snapshot_pb2.GetResponse(snapshot=snapshot, agent_state=content)
    assert get_response(snapshot, bytes_of(content)) == expected.SerializeToString()


@given(
    content=st.binary(min_size=1, max_size=300),
    offset=st.integers(0, 2**40),
    name=st.sampled_from(["agent_state", "key_value"]),
)
def test_a_chunk_is_what_protobuf_writes(content: bytes, offset: int, name: str) -> None:
    chunk = snapshot_pb2.StateChunk(offset_bytes=offset, content=content, crc32c=google_crc32c.value(content))
    expected = snapshot_pb2.ExportStateResponse(**{name: chunk})  # type: ignore[arg-type]
    number = snapshot_pb2.ExportStateResponse.DESCRIPTOR.fields_by_name[name].number
    assert export_response(number, offset, bytes_of(content)) == expected.SerializeToString()


def test_a_chunk_whose_checksum_is_zero_is_what_protobuf_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_crc32c, "value", lambda content: 0)
    chunk = snapshot_pb2.StateChunk(content=b"x")
    assert (
        export_response(2, 0, bytes_of(b"x")) == snapshot_pb2.ExportStateResponse(agent_state=chunk).SerializeToString()
    )


@pytest.mark.parametrize("nbytes", [0, 1, CHUNK_BYTES, 5 * CHUNK_BYTES - 1, 6 * CHUNK_BYTES])
@pytest.mark.parametrize("is_hash_known", [True, False])
def test_a_state_arrives_whole_and_in_order_with_its_hash(
    nbytes: int, is_hash_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", CHUNK_BYTES)
    state, pages = np.random.default_rng(nbytes).bytes(nbytes), b"pages" * 700
    header = snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(agent_state_bytes=nbytes))
    if is_hash_known:
        header.snapshot.agent_state_sha256 = hashlib.sha256(state).digest()

    async def sent() -> list[snapshot_pb2.ExportStateResponse]:
        workers = TextWorkers(2)
        encode = serializer(snapshot_pb2.ExportStateResponse.SerializeToString)
        found = [
            encode(each) async for each in state_streams.parts(workers, header, bytes_of(state), bytes_of(pages), {})
        ]
        workers.close()
        return [snapshot_pb2.ExportStateResponse.FromString(each) for each in found]

    first, *chunks, last = asyncio.run(sent())
    assert first.header == header
    for name, content in (("agent_state", state), ("key_value", pages)):
        mine = [getattr(each, name) for each in chunks if each.WhichOneof("part") == name]
        assert b"".join(each.content for each in mine) == content
        assert [each.offset_bytes for each in mine] == list(range(0, len(content), CHUNK_BYTES))
        assert getattr(last.end, f"{name}_bytes") == len(content)
        assert getattr(last.end, f"{name}_sha256") == hashlib.sha256(content).digest()


@pytest.mark.parametrize("is_hash_known", [True, False])
def test_the_checksums_of_a_saved_versions_pieces_are_those_of_its_chunks(tmp_path: Path, is_hash_known: bool) -> None:
    state = np.random.default_rng(5).bytes(2 * limits.CHUNK_BYTES_MAX + 77)
    with StateSnapshotManager(gguf_bytes.write_model(tmp_path / "M.gguf")) as manager:
        header = snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id="s"))
        header.snapshot.agent_state_sha256 = hashlib.sha256(state).digest() if is_hash_known else b""
        manager.save(header, agent_state=state)
        saved = manager.restore("s")

    async def chunks() -> list[snapshot_pb2.StateChunk]:
        sent = state_streams.parts(TextWorkers(1), saved.header, saved.agent_state, None, saved.piece_checksums)
        parsed = [snapshot_pb2.ExportStateResponse.FromString(each) async for each in sent if isinstance(each, bytes)]
        return [each.agent_state for each in parsed]

    found = asyncio.run(chunks())
    assert len(found) == len(saved.piece_checksums["agent_state"]) == 3
    assert [google_crc32c.value(each.content) for each in found] == [each.crc32c for each in found]


def test_a_reader_that_goes_away_leaves_no_task_behind() -> None:
    content = np.zeros(limits.CHUNK_BYTES_MAX * 8, np.uint8)

    async def leave() -> int:
        workers = TextWorkers(1)
        chunks = state_streams.chunks(workers, 2, content, hashlib.sha256())
        await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.sleep(0)
        workers.close()
        return len(asyncio.all_tasks())

    assert asyncio.run(leave()) == 1
