"""Rows of the cache in every type: their bytes, what they round, and pages that come back as they were exported."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.cache_layout import CacheLayout, CacheType
from magnitude_service.engine.cache_rows import RowShape, cells_and_scales, decode, encode, encoded_from
from magnitude_service.engine.program import CacheShape

SIZES = (16, 40, 64, 96, 128)
BLOCK_TYPES = (CacheType.Q8_0, CacheType.Q4_0)


def rows_of(head_size: int, *outer: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((*outer, head_size)).astype(np.float32)


# Relative to the number, half a unit of its last place; relative to its block's largest magnitude, half a code and the
# rounding of the scale. That magnitude is code -8 of Q4_0: the other side reaches 7 only, and may lose a whole code.
ROUNDING = {
    CacheType.F32: (0.0, 0.0),
    CacheType.F16: (2**-11, 0.0),
    CacheType.BF16: (2**-8, 0.0),
    CacheType.Q8_0: (0.0, 0.501 / 127),
    CacheType.Q4_0: (0.0, 1.01 / 8),
}


@pytest.mark.parametrize("cache_type", CacheType)
@pytest.mark.parametrize("head_size", SIZES)
def test_a_row_is_rounded_no_more_than_its_type_says(cache_type: CacheType, head_size: int) -> None:
    rows = rows_of(head_size, 500)
    encoded = encode(rows, cache_type)
    shape = RowShape(cache_type, head_size)
    assert encoded.shape == (500, shape.encoded)
    assert encoded.dtype == cache_type.dtype
    relative, of_largest = ROUNDING[cache_type]
    back = decode(encoded, cache_type, head_size)
    blocks = np.abs(np.pad(rows, ((0, 0), (0, -head_size % 32)))).reshape(500, -1, 32)
    largest = np.repeat(blocks.max(axis=-1), 32, axis=1)[:, :head_size]
    assert (np.abs(back - rows) <= relative * np.abs(rows) + of_largest * largest).all()
    assert encode(back, cache_type).tobytes() == encoded.tobytes() or cache_type in BLOCK_TYPES


@pytest.mark.parametrize("cache_type", BLOCK_TYPES)
@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_encoded_blocks_are_those_of_gguf(cache_type: CacheType, head_size: int) -> None:
    encoded = encode(rows_of(head_size, 200), cache_type)
    expected = dequantize(encoded, GGMLQuantizationType[cache_type.name])
    np.testing.assert_array_equal(decode(encoded, cache_type, head_size), expected)


@pytest.mark.parametrize("cache_type", CacheType)
@pytest.mark.parametrize("head_size", SIZES)
def test_cells_and_scales_are_the_whole_row(cache_type: CacheType, head_size: int) -> None:
    shape, encoded = RowShape(cache_type, head_size), encode(rows_of(head_size, 7, 3), cache_type)
    parts = cells_and_scales(encoded, shape)
    assert parts[0].shape == (7, 3, shape.cells)
    assert encoded_from(*parts, shape).tobytes() == encoded.tobytes()


@pytest.mark.parametrize("cache_type", CacheType)
def test_what_is_no_number_stays_none_and_harms_its_block_alone(cache_type: CacheType) -> None:
    for poison in (np.nan, np.inf, -np.inf):
        rows = rows_of(96, 2)
        rows[0, 40] = poison
        back = decode(encode(rows, cache_type), cache_type, 96)
        assert not np.isfinite(back[0, 40])
        assert np.isfinite(back[0, :32]).all()
        assert np.isfinite(back[0, 64:]).all()
        assert np.isfinite(back[1]).all()


@pytest.mark.parametrize("cache_type", CacheType)
@pytest.mark.parametrize("head_size", SIZES)
def test_rows_come_back_from_their_pages(cache_type: CacheType, head_size: int) -> None:
    layout = CacheLayout(CacheShape(layers=2, key_value_heads=3, head_size=head_size), cache_type)
    buffer = np.zeros(5 * layout.page_bytes, np.uint8)
    positions = np.arange(70)
    at = np.array([4, 0, 2])[positions // PAGE_TOKENS], positions % PAGE_TOKENS
    keys, values = rows_of(head_size, 70, 3, seed=2), rows_of(head_size, 70, 3, seed=3)
    layout.write_rows(buffer, 1, at, keys, values)
    for found, rows in zip(layout.read_rows(buffer, 1, at), (keys, values), strict=True):
        np.testing.assert_array_equal(found, decode(encode(rows, cache_type), cache_type, head_size))
    for rows in layout.read_rows(buffer, 0, at):
        assert not rows.any()


@pytest.mark.parametrize("cache_type", CacheType)
@pytest.mark.parametrize("head_size", SIZES)
def test_an_exported_page_holds_rows_in_the_order_of_the_contract(cache_type: CacheType, head_size: int) -> None:
    layout = CacheLayout(CacheShape(layers=2, key_value_heads=3, head_size=head_size), cache_type)
    assert layout.page_bytes == PAGE_TOKENS * 2 * 2 * 3 * layout.row.size_bytes
    rows = rows_of(head_size, 2, 2, PAGE_TOKENS, 3)  # layer, side, position, head
    buffer = np.full(3 * layout.page_bytes, 0xFF, np.uint8)
    at = np.full(PAGE_TOKENS, 1), np.arange(PAGE_TOKENS)
    for layer in range(2):
        layout.write_rows(buffer, layer, at, rows[layer, 0], rows[layer, 1])
    exported = layout.export_page(buffer, 1, 20)
    assert exported.tobytes() == encode(rows.swapaxes(2, 3)[:, :, :, :20], cache_type).tobytes()
    other = np.full(3 * layout.page_bytes, 0xFF, np.uint8)
    layout.import_page(other, 2, exported)
    assert layout.export_page(other, 2, 20).tobytes() == exported.tobytes()
    before = np.full(layout.page_bytes, 0xFF, np.uint8)
    assert other[: 2 * layout.page_bytes].tobytes() == before.tobytes() * 2
    layout.import_page(other, 2, layout.export_page(buffer, 1, PAGE_TOKENS))
    assert other[2 * layout.page_bytes :].tobytes() == buffer[layout.page_bytes : 2 * layout.page_bytes].tobytes()


def test_a_page_of_another_layout_is_not_taken() -> None:
    shape = CacheShape(layers=1, key_value_heads=1, head_size=64)
    layout = CacheLayout(shape, CacheType.Q8_0)
    buffer = np.zeros(layout.page_bytes, np.uint8)
    exported = layout.export_page(buffer, 0, 5)
    with pytest.raises(AssertionError, match="is not"):
        CacheLayout(shape, CacheType.Q4_0).import_page(buffer, 0, exported)
    half, brain = CacheLayout(shape, CacheType.F16), CacheLayout(shape, CacheType.BF16)
    buffer = np.zeros(half.page_bytes, np.uint8)
    narrow = half.export_page(buffer, 0, 5)
    with pytest.raises(AssertionError, match="holds BF16"):
        brain.import_page(buffer, 0, narrow)
