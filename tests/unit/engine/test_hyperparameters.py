"""Hyper-parameters are checked before they are believed, and what we cannot compute is refused by its key."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import pytest

from magnitude_service.engine.hyperparameters import NEUTRAL, Hyperparameters, vocabulary_size
from magnitude_service.errors import IntegrityError, MagnitudeError, UnsupportedModelError
from magnitude_service.formats import Metadata, parse_header
from tests.support import gguf_bytes as raw


def u32(value: int) -> bytes:
    return raw.scalar(raw.U32, value)


def f32(value: float) -> bytes:
    return raw.scalar(raw.F32, value)


def u32_array(*values: int) -> bytes:
    return raw.array(raw.U32, [struct.pack("<I", value) for value in values])


SOUND: Mapping[str, bytes] = {
    "block_count": u32(2),
    "context_length": u32(512),
    "embedding_length": u32(96),
    "feed_forward_length": u32(160),
    "attention.head_count": u32(6),
    "attention.head_count_kv": u32(2),
    "attention.layer_norm_rms_epsilon": f32(1e-5),
}
"""The keys that every model of ours has."""


def metadata(overrides: Mapping[str, bytes | None] | None = None, tokens: int | None = None) -> Metadata:
    """Sound keys but for the given ones; None takes a key away."""
    values = {key: value for key, value in {**SOUND, **(overrides or {})}.items() if value is not None}
    entries = [raw.key_value(b"llama." + key.encode(), value) for key, value in values.items()]
    if tokens is not None:
        strings = [raw.string(b"%d" % token) for token in range(tokens)]
        entries.append(raw.key_value(b"tokenizer.ggml.tokens", raw.array(raw.STRING, strings)))
    return parse_header(raw.GGUFBytes(key_values=entries).build(), source="m.gguf").metadata


def read(**overrides: bytes | None) -> Hyperparameters:
    return Hyperparameters.from_metadata(metadata({key.replace("__", "."): v for key, v in overrides.items()}), "llama")


def test_defaults_follow_from_the_required_keys() -> None:
    sizes = read()
    assert (sizes.layers, sizes.embedding, sizes.feed_forward, sizes.context_length) == (2, 96, 160, 512)
    assert (sizes.heads, sizes.key_value_heads, sizes.head_size, sizes.rope_dimensions) == (6, 2, 16, 16)
    assert (sizes.rope_base, sizes.rope_scale) == (10_000.0, 1.0)
    assert sizes.epsilon == pytest.approx(1e-5)


def test_without_a_count_there_are_as_many_key_value_heads_as_heads() -> None:
    assert read(attention__head_count_kv=None).key_value_heads == 6


@pytest.mark.parametrize("key", [key for key in SOUND if key != "attention.head_count_kv"])
def test_a_required_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(IntegrityError, match=rf"llama\.{key} is missing"):
        Hyperparameters.from_metadata(metadata({key: None}), "llama")


def test_a_stated_head_size_need_not_divide_the_embedding() -> None:
    sizes = read(attention__head_count=u32(5), attention__head_count_kv=u32(5), attention__key_length=u32(32),
                 attention__value_length=u32(32))  # fmt: skip
    assert (sizes.heads, sizes.head_size, sizes.rope_dimensions) == (5, 32, 32)


def test_a_stated_head_size_leaves_values_no_other_one() -> None:
    # Without value_length, a value is as long as the embedding over the heads: 16 here.
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.value_length is 16; it must be 32"):
        read(attention__key_length=u32(32))


HOSTILE = {
    "no layer": ("block_count", u32(0)),
    "a layer too many": ("block_count", u32(1_025)),
    "layers by the billion": ("block_count", u32(2**32 - 1)),
    "a negative number of layers": ("block_count", raw.scalar(raw.I32, -1)),
    "half a layer": ("block_count", f32(0.5)),
    "no context": ("context_length", u32(0)),
    "a context beyond positions": ("context_length", raw.scalar(raw.U64, 2**63)),
    "no embedding": ("embedding_length", u32(0)),
    "an embedding that fills memory": ("embedding_length", raw.scalar(raw.U64, 2**40)),
    "no feed-forward": ("feed_forward_length", u32(0)),
    "no head": ("attention.head_count", u32(0)),
    "heads that do not divide the embedding": ("attention.head_count", u32(5)),
    "more heads than the embedding is wide": ("attention.head_count", u32(192)),
    "no key/value head": ("attention.head_count_kv", u32(0)),
    "more key/value heads than heads": ("attention.head_count_kv", u32(12)),
    "key/value heads that do not divide the heads": ("attention.head_count_kv", u32(4)),
    "a head of no size": ("attention.key_length", u32(0)),
    "values of another size than keys": ("attention.value_length", u32(8)),
    "half a pair of rotated dimensions": ("rope.dimension_count", u32(7)),
    "no rotated dimension": ("rope.dimension_count", u32(0)),
    "more rotated dimensions than a head has": ("rope.dimension_count", u32(18)),
    "epsilon 0": ("attention.layer_norm_rms_epsilon", f32(0)),
    "a negative epsilon": ("attention.layer_norm_rms_epsilon", f32(-1e-5)),
    "epsilon NaN": ("attention.layer_norm_rms_epsilon", f32(math.nan)),
    "an infinite epsilon": ("attention.layer_norm_rms_epsilon", f32(math.inf)),
    "epsilon as a text": ("attention.layer_norm_rms_epsilon", raw.text(b"1e-5")),
    "rope base 0": ("rope.freq_base", f32(0)),
    "rope base NaN": ("rope.freq_base", f32(math.nan)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_value_is_refused_by_its_key(case: str) -> None:
    key, value = HOSTILE[case]
    with pytest.raises(MagnitudeError, match=rf"llama\.{key}") as caught:
        Hyperparameters.from_metadata(metadata({key: value}), "llama")
    assert isinstance(caught.value, IntegrityError | UnsupportedModelError)
    assert caught.value.details["field"] == f"llama.{key}"
    assert caught.value.remedy


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_layers_that_differ_are_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"llama\.{key} is an array of U32.*layers that differ"):
        Hyperparameters.from_metadata(metadata({key: u32_array(6, 6)}), "llama")


@pytest.mark.parametrize("kind", ["yarn", "longrope", "su", ""])
def test_a_kind_of_scaling_that_we_do_not_know_is_refused_by_name(kind: str) -> None:
    values = {"rope.scaling.type": raw.text(kind.encode()), "rope.scaling.factor": f32(4)}
    if kind == "":
        assert Hyperparameters.from_metadata(metadata(values), "llama").rope_scale == 4
        return
    with pytest.raises(UnsupportedModelError, match=rf"rope\.scaling\.type is {kind}; it must be none or linear"):
        Hyperparameters.from_metadata(metadata(values), "llama")


LINEAR = raw.text(b"linear")


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ({"rope.scaling.type": LINEAR, "rope.scaling.factor": f32(4)}, 4),
        ({"rope.scaling.factor": f32(4)}, 4),
        ({"rope.scale_linear": f32(2)}, 2),
        ({"rope.scaling.type": LINEAR, "rope.scale_linear": f32(2)}, 2),
        ({"rope.scaling.factor": f32(4), "rope.scale_linear": f32(2)}, 4),
        ({"rope.scaling.type": raw.text(b"none"), "rope.scaling.factor": f32(4)}, 1),
        ({"rope.scaling.type": raw.text(b"none")}, 1),
    ],
)
def test_linear_scaling_divides_positions(values: Mapping[str, bytes], scale: float) -> None:
    assert Hyperparameters.from_metadata(metadata(values), "llama").rope_scale == scale


@pytest.mark.parametrize("factor", [None, f32(0), f32(-4), f32(math.nan), u32(4)])
def test_linear_scaling_without_a_sound_factor_is_refused(factor: bytes | None) -> None:
    with pytest.raises(IntegrityError, match=r"rope\.scal"):
        Hyperparameters.from_metadata(metadata({"rope.scaling.type": LINEAR, "rope.scaling.factor": factor}), "llama")


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_feature_that_we_do_not_compute_is_refused_by_name_unless_it_is_off(name: str) -> None:
    for usual in NEUTRAL[name]:
        kind = raw.BOOL if isinstance(usual, bool) else raw.F32
        assert Hyperparameters.from_metadata(metadata({name: raw.scalar(kind, usual)}), "llama") == read()
    other = raw.scalar(raw.BOOL, not NEUTRAL[name][0]) if isinstance(NEUTRAL[name][0], bool) else f32(0.5)
    for value in (other, f32(math.nan), u32_array(0, 0)):
        with pytest.raises(UnsupportedModelError, match=rf"llama\.{name} is .*; it must be") as caught:
            Hyperparameters.from_metadata(metadata({name: value}), "llama")
        assert caught.value.details["field"] == f"llama.{name}"


def test_experts_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"llama\.expert_count is 8; it must be 0"):
        read(expert_count=u32(8))


@pytest.mark.parametrize("window", [0, 512, 4096])
def test_a_sliding_window_that_hides_nothing_changes_nothing(window: int) -> None:
    assert read(attention__sliding_window=u32(window)) == read()


def test_a_sliding_window_narrower_than_the_context_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"attention\.sliding_window is 511; it must be 0, or at least 512"):
        read(attention__sliding_window=u32(511))


@pytest.mark.parametrize(
    ("tokens", "stated", "rows", "expected"),
    [
        (280, None, 280, 280),
        (280, 280, 280, 280),
        (280, None, 320, 280),  # padded rows: no id names them
        (280, 280, 320, 280),
        (280, 320, 320, 280),
        (None, None, 320, 320),
        (None, 300, 320, 300),
    ],
)
def test_the_tokenizer_decides_how_many_ids_there_are(
    tokens: int | None, stated: int | None, rows: int, expected: int
) -> None:
    found = metadata({"vocab_size": None if stated is None else u32(stated)}, tokens)
    assert vocabulary_size(found, "llama", rows) == expected


@pytest.mark.parametrize(
    ("tokens", "stated", "message"),
    [
        (321, None, r"tokenizer\.ggml\.tokens is a list of 321; it must have 1 to 320"),
        (0, None, r"tokenizer\.ggml\.tokens is a list of 0"),
        (280, 279, r"llama\.vocab_size is 279; it must be 280, .* or 320"),
        (280, 281, r"llama\.vocab_size is 281; it must be 280, .* or 320"),
        (280, 321, r"llama\.vocab_size is 321"),
        (280, 0, r"llama\.vocab_size is 0"),
        (None, 321, r"llama\.vocab_size is 321"),
    ],
)
def test_ids_without_a_row_and_contradictions_are_refused(tokens: int | None, stated: int | None, message: str) -> None:
    found = metadata({"vocab_size": None if stated is None else u32(stated)}, tokens)
    with pytest.raises(MagnitudeError, match=message) as caught:
        vocabulary_size(found, "llama", 320)
    assert isinstance(caught.value, IntegrityError | UnsupportedModelError)
