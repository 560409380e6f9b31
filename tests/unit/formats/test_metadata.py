"""Key/values are decoded when they are asked for, with errors that name key, expectation and finding."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from magnitude_service.errors import IntegrityError
from magnitude_service.formats import Metadata, parse_header
from tests.support import gguf_bytes as raw


def metadata_of(**values: bytes) -> Metadata:
    entries = [raw.key_value(key.encode(), value) for key, value in values.items()]
    return parse_header(raw.GGUFBytes(key_values=entries).build(), source="m.gguf").metadata


@pytest.fixture
def small() -> Metadata:
    return parse_header(raw.small_model().build(), source="m.gguf").metadata


def test_it_is_a_mapping_in_file_order(small: Metadata) -> None:
    assert list(small)[:3] == ["general.architecture", "general.name", "scalar.0"]
    assert len(small) == len(list(small.keys())) == 16
    assert "tokens" in small
    assert "token" not in small
    assert "tokens\udc80" not in small
    assert 3 not in small


@pytest.mark.parametrize("kind", [raw.U8, raw.I8, raw.U16, raw.I16, raw.U32, raw.I32, raw.U64, raw.I64])
def test_integers_of_every_width_are_integers(small: Metadata, kind: int) -> None:
    assert small.integer(f"scalar.{kind}") == 1


def test_extreme_integers_keep_their_value() -> None:
    found = metadata_of(low=raw.scalar(raw.I64, -(2**63)), high=raw.scalar(raw.U64, 2**64 - 1))
    assert found.integer("low") == -(2**63)
    assert found.integer("high") == 2**64 - 1


def test_typed_readers_read_their_types(small: Metadata) -> None:
    assert small.real(f"scalar.{raw.F32}") == 1.0
    assert small.real(f"scalar.{raw.F64}") == 1.0
    assert small.boolean(f"scalar.{raw.BOOL}") is True
    assert small.text("general.name") == "Größe 1"
    assert list(small.strings("tokens")) == [b"a", b"\xff\xfe", b""]
    assert small.numbers("scores", count=2).tolist() == [0.5, -1.0]


def test_an_absent_key_gives_the_default_and_without_one_an_error(small: Metadata) -> None:
    assert small.integer("absent", default=7) == 7
    assert small.real("absent", default=None) is None
    assert small.text("absent", "") == ""
    assert small.boolean("absent", False) is False
    with pytest.raises(IntegrityError, match=r"^m\.gguf: absent is missing; an integer is expected\."):
        small.integer("absent")
    with pytest.raises(IntegrityError, match="absent is missing; an array of STRING is expected"):
        small.strings("absent")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda m: m.integer("general.name"), "general.name is of type STRING; an integer is expected"),
        (lambda m: m.integer("scalar.7"), "scalar.7 is of type BOOL; an integer is expected"),
        (lambda m: m.real("scalar.4"), "scalar.4 is of type U32; F32 or F64 is expected"),
        (lambda m: m.boolean("scalar.4", True), "scalar.4 is of type U32; BOOL is expected"),
        (lambda m: m.text("tokens"), "tokens is an array of STRING; STRING is expected"),
        (lambda m: m.strings("scores"), "scores is an array of F32; an array of STRING is expected"),
        (lambda m: m.strings("scalar.4"), "scalar.4 is of type U32; an array of STRING is expected"),
        (lambda m: m.numbers("tokens"), "tokens is an array of STRING; an array of numbers is expected"),
        (lambda m: m.numbers("nested"), "nested is an array of ARRAY; an array of numbers is expected"),
        (lambda m: m.numbers("scores", count=3), "scores has 2 elements; 3 are expected"),
        (lambda m: m.integer("scalar.4", minimum=2, maximum=9), "scalar.4 is 1; it must lie in 2 … 9"),
        (lambda m: m.real("scalar.6", maximum=0.5), "scalar.6 is 1.0; it must lie in -∞ … 0.5"),
    ],
)
def test_what_does_not_fit_is_named_with_key_expectation_and_finding(small: Metadata, read, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IntegrityError) as raised:
        read(small)
    assert message in raised.value.message
    assert raised.value.details["file"] == "m.gguf"
    assert raised.value.details["field"] in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_real_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(IntegrityError, match="it must be finite"):
        metadata_of(eps=raw.scalar(raw.F32, value)).real("eps")


def test_a_text_that_is_not_utf8_is_refused_but_can_be_shown() -> None:
    found = metadata_of(name=raw.text(b"ab\xff"))
    with pytest.raises(IntegrityError, match="name is not UTF-8: byte 0xff at its offset 2"):
        found.text("name")
    assert found.value("name") == "ab\\xff"


def test_arrays_are_read_only_views_of_the_buffer(small: Metadata) -> None:
    data = raw.small_model().build()
    found = parse_header(data, source="m.gguf").metadata
    scores, tokens = found.numbers("scores"), found.strings("tokens")
    for view in (scores, tokens.data):
        assert np.shares_memory(view, np.frombuffer(data, np.uint8))
        assert not view.flags.writeable


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(raw.U8, "u1"), (raw.I16, "<i2"), (raw.U32, "<u4"), (raw.I64, "<i8"), (raw.F64, "<f8"), (raw.BOOL, "?")],
)
def test_number_arrays_keep_the_files_own_type(kind: int, dtype: str) -> None:
    packed = [struct.pack(raw.FORMATS[kind], value) for value in (0, 1)]
    numbers = metadata_of(odd=raw.text(b"x"), numbers=raw.array(kind, packed)).numbers("numbers")
    assert numbers.dtype == np.dtype(dtype)
    assert numbers.tolist() == [0, 1]


def test_value_gives_whatever_is_there(small: Metadata) -> None:
    assert small.value("scalar.4") == 1
    assert small["general.architecture"] == "llama"
    nested = small.value("nested")
    assert isinstance(nested, list)
    assert nested[0].tolist() == [1, -1]
    assert list(nested[1]) == [b"b"]
    with pytest.raises(KeyError):
        small.value("absent")


def test_descriptions_are_one_line_short_and_safe_for_a_terminal(small: Metadata) -> None:
    assert small.describe("tokens") == 'array of STRING [3] "a", "\\xff\\xfe", ""'
    assert small.describe("scores") == "array of F32 [2] 0.5, -1.0"
    assert small.describe("nested") == "array of ARRAY [2]"
    assert small.type_of("nested") == "array of ARRAY"
    hostile = metadata_of(name=raw.text(b"\x1b[2J\nred\x07" + b"x" * 10_000)).describe("name")
    assert hostile.startswith('"\\x1b[2J\\nred\\x07xxx')
    assert hostile.endswith("… (10,009 bytes)")
    assert len(hostile) < 150
