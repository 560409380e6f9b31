"""The layout, against FORMAT.md's own hexdump, against protobuf's parser, and against damage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.v1 import snapshot_pb2, state_pb2
from magnitude_service import snapshot
from magnitude_service.errors import IncompatibleVersionError, InvalidRequestError
from magnitude_service.snapshot import record
from magnitude_service.snapshot.checksum import crc32c
from magnitude_service.snapshot.record import Content, Kind, SegmentHeader

FORMAT = Path(snapshot.__file__).with_name("FORMAT.md")
FIELDS = {
    "log_id": 0x0123456789ABCDEF,
    "offset": 131_072,
    "sequence": 2,
    "durable_through": 1,
    "index_offset": 0,
    "time_ns": 1_700_000_000 * 10**9,
}


def worked_example() -> bytes:
    """The segment that FORMAT.md prints."""
    header = snapshot_pb2.StateHeader(
        snapshot=snapshot_pb2.Snapshot(session_id="demo", version=2, parent_version=1, token_count=3),
        session=snapshot_pb2.SessionState(state_version=1, token_ids=[1, 2, 3]),
    )
    header.snapshot.create_time.seconds = 1_700_000_000
    header.snapshot.agent_state_bytes = 5
    return segment(header, [Content.of("agent_state", b"hello")], version=2, floor=1, of="demo")


def segment(
    header: snapshot_pb2.StateHeader, contents: list[Content], version: int = 1, floor: int = 0, of: str = "s"
) -> bytes:
    body = record.encode_state(header, contents)
    envelope = {"envelope_bytes": len(body.envelope), "envelope_crc": crc32c(body.envelope), "body_bytes": body.nbytes}
    head = SegmentHeader(Kind.SNAPSHOT, version=version, floor=floor, session_id=of, **FIELDS, **envelope)
    data = b"".join(bytes(part) for part in record.segment_parts(head, body))
    assert len(data) == head.length
    return data


def hexdump(data: bytes, begin: int) -> str:
    """Lines of 16 bytes, offsets in hexadecimal, letters beside them."""
    lines = []
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"    {begin + offset:08x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def test_the_hexdump_of_the_format_is_what_we_write() -> None:
    assert hexdump(worked_example(), FIELDS["offset"]) in FORMAT.read_text(encoding="utf-8")


def test_the_hexdump_of_the_format_is_parsed() -> None:
    rows = re.findall(r"^    000[0-9a-f]{5}  ((?:[0-9a-f]{2} ?)+)", FORMAT.read_text(encoding="utf-8"), re.MULTILINE)
    data = bytes.fromhex("".join(rows))
    header = record.parse_header(data, FIELDS["offset"])
    assert header
    assert (header.kind, header.session_id, header.version, header.floor) == (Kind.SNAPSHOT, "demo", 2, 1)
    state = record.parse_envelope(data[256 : 256 + header.envelope_bytes], header)
    assert state
    assert list(state.header.session.token_ids) == [1, 2, 3]
    [blob] = state.blobs
    assert data[blob.offset_bytes : blob.offset_bytes + blob.length_bytes] == b"hello"
    assert record.parse_end_mark(data[-40:]) == (header.log_id, header.offset, header.sequence)


sizes = st.lists(st.integers(0, 9000), max_size=6)


@given(sizes=sizes, tokens=st.integers(0, 3000))
def test_any_body_is_one_message_to_protobuf_and_its_blobs_are_aligned(sizes: list[int], tokens: int) -> None:
    header = snapshot_pb2.StateHeader(session=snapshot_pb2.SessionState(token_ids=[7] * tokens))
    contents = [Content.of(f"agent/{place}", bytes([place + 1]) * size) for place, size in enumerate(sizes)]
    data = segment(header, contents)
    head = record.parse_header(data, FIELDS["offset"])
    assert head
    whole = state_pb2.StoredState.FromString(data[256 : 256 + head.body_bytes])
    assert [bytes(each) for each in whole.contents] == [bytes(content.data) for content in contents]
    assert whole.header == header
    assert not any(any(padding) for padding in whole.padding)
    for blob, content in zip(whole.blobs, contents, strict=True):
        assert data[blob.offset_bytes : blob.offset_bytes + blob.length_bytes] == bytes(content.data)
        assert blob.offset_bytes % (4096 if content.nbytes >= 4096 else 64) == 0
        assert blob.crc32c == crc32c(content.data)
    envelope = data[256 : 256 + head.envelope_bytes]
    assert record.parse_envelope(envelope, head) is not None
    front = state_pb2.StoredState(header=whole.header, blobs=whole.blobs)
    assert envelope == front.SerializeToString(deterministic=True), "protobuf would write the same"


@pytest.mark.parametrize("gap", range(64))
@pytest.mark.parametrize("content_bytes", [5, 5000])
def test_glue_fills_every_gap(gap: int, content_bytes: int) -> None:
    for position in (256 + gap, 256 + gap + 3900, 4096 * 3 - 130 - gap):
        glue = record.encode_glue(position, content_bytes)
        assert (position + len(glue)) % (4096 if content_bytes >= 4096 else 64) == 0


def example_header() -> SegmentHeader:
    header = record.parse_header(worked_example(), FIELDS["offset"])
    assert header
    return header


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    data = record.encode_header(example_header())
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert record.parse_header(bytes(damaged), FIELDS["offset"]) is None


def test_a_copy_of_a_segment_elsewhere_is_none() -> None:
    assert record.parse_header(worked_example(), FIELDS["offset"] + record.ALIGNMENT) is None


def test_a_header_that_is_cut_short_is_none() -> None:
    assert record.parse_header(worked_example()[:255], FIELDS["offset"]) is None


@pytest.mark.parametrize(("at", "value"), [(8, 2), (10, 9), (12, 1)], ids=["version", "kind", "flag"])
def test_what_a_newer_program_wrote_is_refused_by_name(at: int, value: int) -> None:
    data = bytearray(record.encode_header(example_header()))
    data[at] = value
    data[252:] = record.CRC.pack(crc32c(bytes(data[:252])))
    with pytest.raises(IncompatibleVersionError, match=r"M\.gguf has a segment of format version \d, kind \d"):
        record.parse_header(bytes(data), FIELDS["offset"], source="M.gguf")


@pytest.mark.parametrize(
    "change",
    [
        {"envelope_bytes": 10**6},
        {"body_bytes": record.BODY_BYTES_MAX + 1},
        {"sequence": record.SEQUENCE_MAX + 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_length_over_its_limit_is_no_header_even_with_a_right_checksum(change: dict[str, int]) -> None:
    data = record.encode_header(example_header()._replace(**change))
    assert record.parse_header(data, FIELDS["offset"]) is None


def test_every_flipped_bit_of_an_end_mark_is_noticed() -> None:
    mark = worked_example()[-40:]
    for bit in range(320):
        damaged = bytearray(mark)
        damaged[bit // 8] ^= 1 << bit % 8
        assert record.parse_end_mark(bytes(damaged)) is None


def test_an_envelope_whose_blobs_overlap_or_leave_a_gap_is_refused() -> None:
    data, header = worked_example(), example_header()
    state = state_pb2.StoredState.FromString(data[256 : 256 + header.envelope_bytes])
    for offset, length in ((state.blobs[0].offset_bytes + 64, 5), (state.blobs[0].offset_bytes, 6), (0, 5)):
        state.blobs[0].offset_bytes, state.blobs[0].length_bytes = offset, length
        assert record.parse_envelope(state.SerializeToString(), header) is None
    assert record.parse_envelope(b"\xff\xff\xff", header) is None


def test_too_many_blobs_are_refused() -> None:
    contents = [Content.of(f"agent/{number}", b"") for number in range(record.BLOBS_MAX + 1)]
    with pytest.raises(InvalidRequestError, match="65; at most 64"):
        record.encode_state(snapshot_pb2.StateHeader(), contents)
