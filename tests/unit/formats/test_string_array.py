"""Strings as offsets and lengths into a buffer."""

from __future__ import annotations

import numpy as np

from magnitude_service.formats import StringArray


def test_strings_come_back_as_the_bytes_that_they_are() -> None:
    strings = [b"a", b"", b"\xff\x00", "Größe".encode()]
    array = StringArray.of(strings)
    assert list(array) == strings
    assert len(array) == 4
    assert array[-1] == "Größe".encode()


def test_offsets_and_lengths_have_the_types_that_native_code_reads() -> None:
    array = StringArray.of([b"ab", b"c"])
    assert (array.offsets.dtype, array.lengths.dtype, array.data.dtype) == (np.uint64, np.uint32, np.uint8)
    assert array.offsets.tolist() == [0, 2]


def test_no_strings_make_an_empty_array() -> None:
    assert list(StringArray.of([])) == []
