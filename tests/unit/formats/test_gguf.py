"""Sound headers give what the `gguf` package's writer put in; anything else gives a typed error."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnitude_service.errors import IncompatibleVersionError, IntegrityError, MagnitudeError
from magnitude_service.formats import Header, TensorType, _formats, parse_header
from tests.support import gguf_bytes as raw

SOUND = raw.small_model().build()
MODEL_END = parse_header(SOUND, source="small").model_end


def everything(header: Header) -> list[object]:
    """Reads all that a header offers, so that a fuzzed one is not only parsed."""
    found: list[object] = [header.metadata.value(key) for key in header.metadata]
    found += [header.metadata.describe(key) for key in header.metadata]
    return [*found, *header.tensors.values()]


def test_a_written_model_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(3)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_add_bos_token(True)
    writer.add_token_list([b"a", b"\xff\xfe", "ä"])  # type: ignore[list-item]
    writer.add_token_scores([0.5, -1.0, 2.0])
    weights = np.arange(24, dtype=np.float32).reshape(3, 8)
    writer.add_tensor("w", weights)
    blocks = gguf.quants.quantize(np.ones((2, 256), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    data = path.read_bytes()
    header = parse_header(data, source=str(path))
    assert (header.version, header.alignment) == (3, 32)
    assert header.metadata.text("general.architecture") == "llama"
    assert header.metadata.integer("llama.block_count") == 3
    assert header.metadata.real("llama.attention.layer_norm_rms_epsilon") == np.float32(1e-5)
    assert header.metadata.boolean("tokenizer.ggml.add_bos_token") is True
    assert list(header.metadata.strings("tokenizer.ggml.tokens")) == [b"a", b"\xff\xfe", "ä".encode()]
    assert header.metadata.numbers("tokenizer.ggml.scores").tolist() == [0.5, -1.0, 2.0]
    w, q = header.tensors.values()
    assert (w.name, w.type, w.shape, w.nbytes, w.row_bytes) == ("w", TensorType.F32, (8, 3), 96, 32)
    assert (q.name, q.type, q.shape, q.nbytes, q.row_bytes) == ("q", TensorType.Q8_0, (256, 2), 544, 272)
    assert data[w.offset : w.offset + w.nbytes] == weights.tobytes()
    assert data[q.offset : q.offset + q.nbytes] == blocks.tobytes()
    assert header.data_offset == w.offset
    assert header.model_end == q.offset + q.nbytes


def test_every_tensor_type_is_accepted_at_its_own_size() -> None:
    for kind in TensorType:
        info = raw.tensor_info(b"t", [kind.block_elements * 2, 3], kind.id)
        model = raw.GGUFBytes(tensors=[info], data=bytes(kind.block_bytes * 6))
        tensor = parse_header(model.build(), source="m").tensors["t"]
        assert (tensor.type, tensor.nbytes, tensor.row_bytes) == (kind, 6 * kind.block_bytes, 2 * kind.block_bytes)
        model.data = model.data[:-1]
        with pytest.raises(IntegrityError, match="the offset of tensor 't'"):
            parse_header(model.build(), source="m")


def test_version_2_is_read_like_version_3() -> None:
    model = raw.small_model()
    model.version = 2
    header = parse_header(model.build(), source="m")
    assert header.version == 2
    assert header.tensors == parse_header(SOUND, source="m").tensors


def test_a_big_endian_file_of_the_gguf_package_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("w", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(IncompatibleVersionError, match="is a big-endian GGUF file"):
        parse_header(path.read_bytes(), source=str(path))


def test_another_magic_is_accepted_only_when_allowed() -> None:
    changed = b"MAGN" + SOUND[4:]
    with pytest.raises(IncompatibleVersionError, match="begins with b'MAGN', not b'GGUF'"):
        parse_header(changed, source="m")
    assert parse_header(changed, source="m", allow_invalid_magic=True).tensors.keys() == {"a.weight", "b.weight"}
    with pytest.raises(IncompatibleVersionError, match="unknown GGUF version"):
        parse_header(b"MAGN" + raw.u32(9) + SOUND[8:], source="m", allow_invalid_magic=True)


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096, 1 << 21])
def test_general_alignment_places_the_data_section(alignment: int) -> None:
    model = raw.GGUFBytes(tensors=[raw.tensor_info(b"t", [8])], data=bytes(range(32)), alignment=alignment)
    model.key_values.append(raw.key_value(b"general.alignment", raw.scalar(raw.U32, alignment)))
    data = model.build()
    header = parse_header(data, source="m")
    assert (header.alignment, header.data_offset % alignment) == (alignment, 0)
    assert data[header.tensors["t"].offset :] == bytes(range(32))


@pytest.mark.parametrize("header_bytes", [255, 256, 257])
def test_a_header_that_ends_on_the_alignment_boundary_is_followed_by_the_first_tensor(header_bytes: int) -> None:
    data = raw.padded_header(header_bytes).build()
    header = parse_header(data, source="m")
    assert header.header_bytes == header_bytes
    assert header.data_offset == (256 if header_bytes <= 256 else 288)
    tensor = header.tensors["a.weight"]
    assert data[tensor.offset : tensor.offset + tensor.nbytes] == bytes(range(1, 33))


def test_bytes_after_the_last_tensor_change_nothing() -> None:
    plain, tailed = parse_header(SOUND, source="m"), parse_header(SOUND + b"tail" * 999, source="m")
    assert (tailed.tensors, tailed.model_end) == (plain.tensors, plain.model_end) == (plain.tensors, len(SOUND))


def test_gaps_between_tensors_and_any_order_are_allowed() -> None:
    infos = [raw.tensor_info(b"late", [8], offset=320), raw.tensor_info(b"early", [8], offset=64)]
    header = parse_header(raw.GGUFBytes(tensors=infos, data=bytes(352)).build(), source="m")
    assert list(header.tensors) == ["late", "early"]
    assert header.model_end == header.data_offset + 352


def test_a_header_without_tensors_is_sound() -> None:
    header = parse_header(raw.GGUFBytes().header(), source="m")
    assert (len(header.tensors), header.model_end) == (0, header.header_bytes)


def test_a_buffer_may_hold_only_the_beginning_of_the_file() -> None:
    header = parse_header(SOUND, source="m")
    front = memoryview(SOUND)[: header.header_bytes]
    assert parse_header(front, source="m", file_bytes=len(SOUND)).tensors == header.tensors
    with pytest.raises(IntegrityError, match="the file ends"):
        parse_header(front, source="m", file_bytes=len(SOUND) - 1)


def test_cut_at_any_byte_it_is_an_error_that_names_field_and_offset() -> None:
    for size in range(MODEL_END):
        with pytest.raises(IntegrityError) as raised:
            parse_header(SOUND[:size], source="cut")
        assert raised.value.message.startswith("cut: the ") or raised.value.message.startswith("cut: ")
        assert 0 <= int(raised.value.details["offset"]) <= size
        assert raised.value.details["field"]
    parse_header(SOUND[:MODEL_END], source="whole")


def test_depth_of_nested_arrays_is_limited() -> None:
    def nested(depth: int) -> bytes:
        body = raw.array_body(raw.U8, [b"\1"])
        for _ in range(depth - 1):
            body = raw.array_body(raw.ARRAY, [body])
        return raw.GGUFBytes(key_values=[raw.key_value(b"k", raw.u32(raw.ARRAY) + body)]).build()

    deepest = parse_header(nested(_formats.ARRAY_DEPTH_MAX), source="m").metadata.value("k")
    assert isinstance(deepest, list)
    assert deepest[0][0][0].tolist() == [1]
    with pytest.raises(IntegrityError, match="nests arrays deeper than 4 levels"):
        parse_header(nested(_formats.ARRAY_DEPTH_MAX + 1), source="m")


def test_a_header_that_is_longer_than_the_limit_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(raw.GGUFBytes(key_values=[raw.key_value(b"k", raw.u32(raw.STRING) + raw.u64(1 << 27))]).header())
    os.truncate(path, 1 << 28)
    with pytest.raises(IntegrityError, match=f"beyond the limit of {_formats.HEADER_BYTES_MAX} bytes for a header"):
        parse_header(np.memmap(path, np.uint8, "r"), source="m")


def test_names_and_dimensions_are_accepted_up_to_their_limits() -> None:
    key, name = b"k" * _formats.KEY_BYTES_MAX, b"t" * _formats.TENSOR_NAME_BYTES_MAX
    model = raw.GGUFBytes(
        key_values=[raw.key_value(key, raw.scalar(raw.U8, 5))],
        tensors=[raw.tensor_info(name, [2] * _formats.DIMENSIONS_MAX)],
        data=bytes(64),
    )
    header = parse_header(model.build(), source="m")
    assert header.metadata.integer(key.decode()) == 5
    assert header.tensors[name.decode()].shape == (2, 2, 2, 2)


def test_long_names_are_cut_between_characters_in_messages() -> None:
    value = raw.u32(99)
    key = "ä".encode() * 200
    with pytest.raises(IntegrityError) as raised:
        parse_header(raw.GGUFBytes(key_values=[raw.key_value(key, value + bytes(8))]).build(), source="m")
    assert "'" + "ä" * 40 + "…'" in raised.value.message


def test_an_array_that_changed_since_the_scan_is_an_error_not_a_crash() -> None:
    data = np.frombuffer(bytearray(SOUND), np.uint8).copy()
    metadata = parse_header(data.data, source="m").metadata
    at = SOUND.index(raw.string(b"\xff\xfe"))
    data[at : at + 8] = 0xFF
    with pytest.raises(IntegrityError, match="m has changed since its header was read"):
        metadata.strings("tokens")


def test_the_metadata_keeps_its_buffer_alive() -> None:
    tokens = parse_header(bytearray(SOUND), source="m").metadata.strings("tokens")
    assert list(tokens) == [b"a", b"\xff\xfe", b""]


@pytest.mark.model
def test_the_header_of_a_large_vocabulary_is_parsed_in_under_60_ms(qwen_path: Path) -> None:
    data = np.memmap(qwen_path, np.uint8, "r")
    spent = []
    for _ in range(5):
        begin = time.process_time()
        header = parse_header(data, source=str(qwen_path))
        spent.append(time.process_time() - begin)
    assert min(spent) < 0.06
    assert len(header.metadata.strings("tokenizer.ggml.tokens")) == 151_936
    assert len(header.metadata.strings("tokenizer.ggml.merges")) == 151_387
    assert header.metadata.integer("qwen2.block_count") == 28
    assert len(header.tensors) == 339


@pytest.mark.model
def test_a_real_header_agrees_with_the_gguf_package(smollm2_path: Path) -> None:
    reader = gguf.GGUFReader(smollm2_path)
    header = parse_header(np.memmap(smollm2_path, np.uint8, "r"), source=str(smollm2_path))
    theirs = {
        tensor.name: (int(tensor.tensor_type), tuple(tensor.shape.tolist()), tensor.data_offset, tensor.n_bytes)
        for tensor in reader.tensors
    }
    ours = {
        tensor.name: (tensor.type.id, tensor.shape, tensor.offset, tensor.nbytes) for tensor in header.tensors.values()
    }
    assert ours == theirs
    fields = [name for name in reader.fields if not name.startswith("GGUF.")]
    assert list(header.metadata) == fields
    for name in fields:
        contents = reader.fields[name].contents()
        found = header.metadata.value(name)
        if isinstance(contents, list):
            texts = [part.decode() for part in found] if isinstance(contents[0], str) else found.tolist()  # type: ignore[attr-defined]
            assert texts == contents
        else:
            assert found == contents


INTERESTING = [0, 1, 7, 8, 255, 256, 2**16, 2**31, 2**32 - 1, 2**61, 2**62, 2**63, 2**64 - 8, 2**64 - 1]


@settings(max_examples=1500, deadline=500)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(SOUND) - 8),
            st.one_of(
                st.sampled_from(INTERESTING).map(lambda value: struct.pack("<Q", value)),
                st.sampled_from(INTERESTING[:9]).map(lambda value: struct.pack("<I", value)),
                st.binary(min_size=1, max_size=8),
            ),
        ),
        max_size=4,
    ),
    cut=st.integers(24, len(SOUND)),
    tail=st.binary(max_size=64),
)
@example(edits=[(8, b"\xff" * 8)], cut=len(SOUND), tail=b"")
def test_any_mutation_gives_a_header_or_a_typed_error(edits: list[tuple[int, bytes]], cut: int, tail: bytes) -> None:
    data = bytearray(SOUND)
    for offset, patch in edits:
        data[offset : offset + len(patch)] = patch
    try:
        header = parse_header(bytes(data[:cut]) + tail, source="fuzzed")
    except MagnitudeError:
        return
    everything(header)
    assert header.header_bytes <= header.model_end <= cut + len(tail)


@settings(max_examples=300, deadline=500)
@given(body=st.binary(max_size=300), tensors=st.integers(0, 3), key_values=st.integers(0, 3))
def test_any_bytes_behind_a_sound_front_give_a_header_or_a_typed_error(
    body: bytes, tensors: int, key_values: int
) -> None:
    try:
        everything(parse_header(b"GGUF" + struct.pack("<IQQ", 3, tensors, key_values) + body, source="fuzzed"))
    except MagnitudeError as error:
        assert str(error)  # noqa: PT017 (either outcome is right)
