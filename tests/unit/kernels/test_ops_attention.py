"""Attention over pages: close to float64, causal to the position, and the same bits on every instruction set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.kernels import _kernels, reference

TABLES = _kernels.supported_tables()
VECTOR_TABLES = [table for table in TABLES if table != "scalar"]
CACHE_F32, CACHE_F16 = 0, 1
PAGE_TOKENS, CHUNK_TOKENS = _kernels.PAGE_TOKENS, _kernels.PAGE_TOKENS * _kernels.CHUNK_PAGES
EPSILON = float(np.finfo(np.float32).eps)


@dataclass
class Chunk:
    maximum: NDArray[np.float32]
    total: NDArray[np.float32]
    output: NDArray[np.float32]


def pages_of(rows, cache_type, *, keys, table="scalar", garbage=0x7F):
    """Pages of one head; slots that hold no position hold NaN, as memory never written may."""
    positions, head_size = rows.shape
    width = 2 if cache_type == CACHE_F16 else 4
    pages = np.full((-(-positions // PAGE_TOKENS), PAGE_TOKENS * head_size * width), garbage, np.uint8)
    _kernels.ops.store(table, rows, cache_type, keys, pages)
    return pages


def attend_chunk(table, q, limit, first_position, keys, values, cache_type, scale):
    count, head_size = q.shape
    result = Chunk(*(np.full(shape, np.nan, np.float32) for shape in (count, count, (count, head_size))))
    _kernels.ops.attention_chunk(
        table, q, limit, first_position, keys, values, cache_type, scale, result.maximum, result.total, result.output
    )
    return result


def attend(table, q, limit, keys, values, cache_type, scale):
    """All chunks of all rows, folded: [R, D]."""
    outputs = np.empty(q.shape, np.float32)
    states = [np.array([-np.inf, 0], np.float32) for _ in q]
    sums = np.zeros(q.shape, np.float32)
    for first in range(0, int(limit.max()), CHUNK_TOKENS):
        pages = slice(first // PAGE_TOKENS, first // PAGE_TOKENS + _kernels.CHUNK_PAGES)
        chunk = attend_chunk(table, q, limit, first, keys[pages].copy(), values[pages].copy(), cache_type, scale)
        for row, state in enumerate(states):
            _kernels.ops.attention_fold(
                table, state, sums[row], float(chunk.maximum[row]), float(chunk.total[row]), chunk.output[row].copy()
            )
    for row, state in enumerate(states):
        outputs[row] = sums[row]
        _kernels.ops.attention_finish(table, float(state[1]), outputs[row])
    return outputs


def assert_same_bits(actual, expected):
    """Equal as bits, but any NaN equals any other."""
    actual, expected = np.array(actual, np.float32), np.array(expected, np.float32)
    actual[np.isnan(actual)] = np.nan
    expected[np.isnan(expected)] = np.nan
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def random_case(rows, head_size, positions, cache_type, seed):
    rng = np.random.default_rng(seed)
    q, keys, values = (
        rng.standard_normal((count, head_size)).astype(np.float32) for count in (rows, positions, positions)
    )
    if cache_type == CACHE_F16:
        keys, values = (array.astype(np.float16).astype(np.float32) for array in (keys, values))
    return q, keys, values


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", [CACHE_F32, CACHE_F16])
@pytest.mark.parametrize(
    ("rows", "head_size", "positions"), [(1, 64, 1), (3, 64, 33), (6, 128, 256), (5, 80, 600), (9, 40, 300)]
)
def test_attention_is_close_to_float64(table, cache_type, rows, head_size, positions):
    q, keys, values = random_case(rows, head_size, positions, cache_type, seed=positions)
    limit = np.maximum(positions - np.arange(rows, dtype=np.int32)[::-1], 1).astype(np.int32)
    scale = 1 / np.sqrt(head_size)
    pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
    y = attend(table, q, limit, *pages, cache_type, float(scale))
    expected = reference.attention(q, keys, values, limit, float(np.float32(scale)))
    # Scores err by D roundings of their terms, the exponential passes that on; sums of P weights of at most 1.
    magnitude = np.abs(q) @ np.abs(keys).T * scale
    tolerance = (head_size / 2 * magnitude.max() + positions / 16 + 16) * EPSILON * np.abs(values).max()
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance / 4)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", [CACHE_F32, CACHE_F16])
def test_a_row_that_sees_one_position_gets_its_value(table, cache_type):
    q, keys, values = random_case(4, 64, 40, cache_type, seed=1)
    pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
    y = attend(table, q, np.ones(4, np.int32), *pages, cache_type, 0.125)
    np.testing.assert_array_equal(y, np.repeat(values[:1], 4, axis=0))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", [CACHE_F32, CACHE_F16])
def test_what_lies_behind_the_limit_changes_no_bit(table, cache_type):
    q, keys, values = random_case(7, 64, 200, cache_type, seed=2)
    for limits in ([100] * 7, [97, 98, 99, 100, 101, 102, 103], [5, 200, 1, 64, 33, 32, 31]):
        limit = np.array(limits, np.int32)
        pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
        together = attend_chunk(table, q, limit, 0, *pages, cache_type, 0.125)
        assert np.isfinite(together.output).all()
        for row, seen in enumerate(limits):
            cut = [
                pages_of(array[:seen], cache_type, keys=is_key, garbage=0xFF)
                for array, is_key in ((keys, True), (values, False))
            ]
            alone = attend_chunk(
                table, q[row : row + 1].copy(), limit[row : row + 1].copy(), 0, *cut, cache_type, 0.125
            )
            assert_same_bits(alone.output[0], together.output[row])
            assert_same_bits([alone.maximum[0], alone.total[0]], [together.maximum[row], together.total[row]])


@pytest.mark.parametrize("table", TABLES)
def test_a_row_that_sees_nothing_of_a_chunk_folds_without_effect(table):
    q, keys, values = random_case(2, 64, 32, CACHE_F32, seed=3)
    pages = [pages_of(array, CACHE_F32, keys=is_key) for array, is_key in ((keys, True), (values, False))]
    chunk = attend_chunk(table, q, np.array([256, 270], np.int32), 256, *pages, CACHE_F32, 0.125)
    assert (chunk.maximum[0], chunk.total[0]) == (-np.inf, 0)
    np.testing.assert_array_equal(chunk.output[0], np.zeros(64))
    state, sums = np.array([0.5, 2], np.float32), np.ones(64, np.float32)
    _kernels.ops.attention_fold(table, state, sums, float(chunk.maximum[0]), 0.0, chunk.output[0].copy())
    np.testing.assert_array_equal(state, np.array([0.5, 2], np.float32))
    np.testing.assert_array_equal(sums, np.ones(64))


@pytest.mark.parametrize("table", TABLES)
def test_nothing_folded_into_nothing_is_nothing(table):
    state, sums = np.array([-np.inf, 0], np.float32), np.zeros(64, np.float32)
    _kernels.ops.attention_fold(table, state, sums, float("-inf"), 0.0, np.zeros(64, np.float32))
    np.testing.assert_array_equal(state, np.array([-np.inf, 0], np.float32))
    np.testing.assert_array_equal(sums, np.zeros(64))


@pytest.mark.parametrize("table", TABLES)
def test_a_largest_score_of_negative_zero_is_reported_as_zero(table):
    q, keys = np.full((1, 64), -1e-30, np.float32), np.full((5, 64), 1e-30, np.float32)
    pages = [pages_of(keys, CACHE_F32, keys=is_key) for is_key in (True, False)]
    chunk = attend_chunk(table, q, np.array([5], np.int32), 0, *pages, CACHE_F32, 1.0)
    assert (chunk.maximum[0], np.signbit(chunk.maximum[0])) == (0, False)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", [CACHE_F32, CACHE_F16])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_in_the_cache_is_seen(table, cache_type, poison):
    q, keys, values = random_case(3, 64, 50, cache_type, seed=4)
    limit = np.full(3, 50, np.int32)
    for place in (0, 1):
        poisoned = [keys.copy(), values.copy()]
        poisoned[place][20, 5] = poison
        pages = [pages_of(poisoned[0], cache_type, keys=True), pages_of(poisoned[1], cache_type, keys=False)]
        chunk = attend_chunk(table, q, limit, 0, *pages, cache_type, 0.125)
        # A key of -inf only takes weight away; everything else must show.
        negative = poison == np.inf and place == 0
        seen = ~np.isfinite(chunk.output[:, 5] if place else chunk.output.sum(axis=1))
        assert (seen | (negative & (q[:, 5] < 0))).all()


@pytest.mark.parametrize("table", VECTOR_TABLES)
@pytest.mark.parametrize("cache_type", [CACHE_F32, CACHE_F16])
@pytest.mark.parametrize("head_size", [16, 40, 64, 80, 96, 128, 256])
def test_vector_tables_have_the_scalar_tables_bits(table, cache_type, head_size):
    for rows in (1, 2, 3, 4, 5, 8, 13):
        q, keys, values = random_case(rows, head_size, 256, cache_type, seed=rows)
        q *= np.float32(4)
        limit = np.random.default_rng(rows).integers(-10, 300, rows).clip(max=256).astype(np.int32)
        pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
        fast, plain = (attend_chunk(name, q, limit, 0, *pages, cache_type, 0.3) for name in (table, "scalar"))
        for part in ("maximum", "total", "output"):
            assert_same_bits(getattr(fast, part), getattr(plain, part))
        if rows > 1:
            outputs = []
            for name in (table, "scalar"):
                state, sums = np.array([fast.maximum[0], fast.total[0]], np.float32), fast.output[0].copy()
                _kernels.ops.attention_fold(
                    name, state, sums, float(fast.maximum[1]), float(fast.total[1]), fast.output[1].copy()
                )
                _kernels.ops.attention_finish(name, 3.0, sums)
                outputs.append(np.concatenate([state, sums]))
            assert_same_bits(*outputs)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("head_size", [16, 40, 64])
def test_pages_are_laid_out_as_the_contract_says(table, head_size):
    rows = np.random.default_rng(5).standard_normal((70, head_size)).astype(np.float32) * 100
    padded = np.zeros((96, head_size), np.float32)
    padded[:70] = rows
    by_page = padded.reshape(3, PAGE_TOKENS, head_size)
    for cache_type, dtype in ((CACHE_F32, np.float32), (CACHE_F16, np.float16)):
        keys = pages_of(rows, cache_type, keys=True, table=table, garbage=0).view(dtype)
        np.testing.assert_array_equal(keys.reshape(3, head_size, PAGE_TOKENS), by_page.transpose(0, 2, 1).astype(dtype))
        values = pages_of(rows, cache_type, keys=False, table=table, garbage=0).view(dtype)
        np.testing.assert_array_equal(values.reshape(3, PAGE_TOKENS, head_size), by_page.astype(dtype))


@pytest.mark.parametrize("table", TABLES)
def test_stored_halves_round_to_nearest_even_over_the_whole_range(table):
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 1 << 32, 60_000, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(0x0000, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64) * (1 + 2**-11)).astype(
        np.float32
    )
    edges = np.array([65504, 65519.996, 65520, 65536, 2**-24, 2**-25, 2**-26, 6.1e-5, np.inf, np.nan, -0.0], np.float32)
    numbers = np.concatenate([bits.view(np.float32), ties, -ties, edges, -edges])
    numbers = np.concatenate([numbers, np.zeros(-len(numbers) % 256, np.float32)]).reshape(-1, 256)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = numbers.astype(np.float16)
    for start in range(0, len(numbers), CHUNK_TOKENS):
        rows = numbers[start : start + CHUNK_TOKENS].copy()
        wanted = expected[start : start + CHUNK_TOKENS]
        stored = (
            pages_of(rows, CACHE_F16, keys=False, table=table, garbage=0).view(np.float16).reshape(-1, 256)[: len(rows)]
        )
        nan = np.isnan(wanted)
        np.testing.assert_array_equal(stored.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])
        assert np.isnan(stored[nan]).all()
