"""Attention over pages: close to float64, causal to the position, and the same bits on every instruction set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine.cache_rows import CacheType, RowShape, cells_and_scales, decode, encode
from magnitude_service.kernels import _kernels, reference

TABLES = _kernels.supported_tables()
VECTOR_TABLES = [table for table in TABLES if table != "scalar"]
CACHE_F32, CACHE_F16 = CacheType.F32, CacheType.F16
EVERYTHING = 2**31 - 1
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
    page_bytes = PAGE_TOKENS * RowShape(cache_type, head_size).size_bytes
    pages = np.full((-(-positions // PAGE_TOKENS), page_bytes), garbage, np.uint8)
    _kernels.ops.store(table, rows, cache_type, keys, pages)
    return pages


def attend_chunk(table, q, limit, first_position, keys, values, cache_type, scale, window=EVERYTHING, softcap=0.0):
    count, head_size = q.shape
    result = Chunk(*(np.full(shape, np.nan, np.float32) for shape in (count, count, (count, head_size))))
    _kernels.ops.attention_chunk(
        table,
        q,
        limit,
        first_position,
        keys,
        values,
        cache_type,
        scale,
        window,
        softcap,
        result.maximum,
        result.total,
        result.output,
    )
    return result


def nothing(rows, head_size):
    """The state that folding begins with; what l = 0 leaves undefined is garbage."""
    return Chunk(np.full(rows, 7, np.float32), np.zeros(rows, np.float32), np.full((rows, head_size), 9, np.float32))


def fold(table, into, chunk):
    _kernels.ops.attention_fold(table, into.maximum, into.total, into.output, chunk.maximum, chunk.total, chunk.output)


def attend(table, q, limit, keys, values, cache_type, scale, window=EVERYTHING, softcap=0.0, sinks=None):
    """All chunks of all rows, folded: [R, D]."""
    state = nothing(*q.shape)
    for first in range(0, int(limit.max()), CHUNK_TOKENS):
        pages = slice(first // PAGE_TOKENS, first // PAGE_TOKENS + _kernels.CHUNK_PAGES)
        chunk_pages = keys[pages].copy(), values[pages].copy()
        fold(table, state, attend_chunk(table, q, limit, first, *chunk_pages, cache_type, scale, window, softcap))
    _kernels.ops.attention_finish(table, state.maximum, state.total, state.output, sinks)
    return state.output


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
    keys, values = (decode(encode(array, cache_type), cache_type, head_size) for array in (keys, values))
    return q, keys, values


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", CacheType)
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
@pytest.mark.parametrize("cache_type", CacheType)
def test_a_row_that_sees_one_position_gets_its_value(table, cache_type):
    q, keys, values = random_case(4, 64, 40, cache_type, seed=1)
    pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
    y = attend(table, q, np.ones(4, np.int32), *pages, cache_type, 0.125)
    np.testing.assert_array_equal(y, np.repeat(values[:1], 4, axis=0))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", CacheType)
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
    state = Chunk(np.full(2, 0.5, np.float32), np.full(2, 2, np.float32), np.ones((2, 64), np.float32))
    fold(table, state, chunk)
    assert (state.maximum[0], state.total[0]) == (0.5, 2)
    np.testing.assert_array_equal(state.output[0], np.ones(64))


@pytest.mark.parametrize("table", TABLES)
def test_what_is_folded_into_nothing_stays_as_it_is(table):
    first = Chunk(np.float32([1, -np.inf]), np.float32([3, 0]), np.float32([[-0.0, 2], [5, 5]]))
    state = nothing(2, 2)
    fold(table, state, first)
    assert_same_bits([state.maximum[0], state.total[0]], [1, 3])
    assert_same_bits(state.output[0], first.output[0])
    assert state.total[1] == 0


@pytest.mark.parametrize("table", TABLES)
def test_a_largest_score_of_negative_zero_is_reported_as_zero(table):
    q, keys = np.full((1, 64), -1e-30, np.float32), np.full((5, 64), 1e-30, np.float32)
    pages = [pages_of(keys, CACHE_F32, keys=is_key) for is_key in (True, False)]
    chunk = attend_chunk(table, q, np.array([5], np.int32), 0, *pages, CACHE_F32, 1.0)
    assert (chunk.maximum[0], np.signbit(chunk.maximum[0])) == (0, False)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", CacheType)
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
@pytest.mark.parametrize("cache_type", CacheType)
@pytest.mark.parametrize("head_size", [16, 40, 64, 80, 96, 128, 256])
def test_vector_tables_have_the_scalar_tables_bits(table, cache_type, head_size):
    for rows, window, softcap in (
        (1, EVERYTHING, 0),
        (2, 40, 0),
        (3, EVERYTHING, 2.5),
        (4, 1, 0),
        (5, 100, 30),
        (8, 33, 0),
        (13, EVERYTHING, 0),
        (14, 50, 3),
        (20, EVERYTHING, 0),
    ):
        q, keys, values = random_case(rows, head_size, 256, cache_type, seed=rows)
        q *= np.float32(4)
        limit = np.random.default_rng(rows).integers(-10, 300, rows).clip(max=256).astype(np.int32)
        pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
        fast, plain = (
            attend_chunk(name, q, limit, 0, *pages, cache_type, 0.3, window, softcap) for name in (table, "scalar")
        )
        for part in ("maximum", "total", "output"):
            assert_same_bits(getattr(fast, part), getattr(plain, part))
        assert np.isfinite(plain.output).all()


@pytest.mark.parametrize("table", VECTOR_TABLES)
@pytest.mark.parametrize("head_size", [16, 40, 128])
@pytest.mark.parametrize("rows", [1, 7, 16, 35])
def test_vector_tables_fold_and_finish_as_the_scalar_table(table, head_size, rows):
    rng = np.random.default_rng(rows)

    def state():
        shown = rng.random(rows) < 0.8
        return Chunk(
            np.where(shown, rng.standard_normal(rows) * 30, -np.inf).astype(np.float32),
            np.where(shown, rng.random(rows) * 9, 0).astype(np.float32),
            (rng.standard_normal((rows, head_size)) * shown[:, None]).astype(np.float32),
        )

    first, second = state(), state()
    if rows > 1:
        second.maximum[1] = first.maximum[1]
    for sinks in (None, (rng.standard_normal(rows) * 30).astype(np.float32)):
        results = []
        for name in (table, "scalar"):
            into = Chunk(first.maximum.copy(), first.total.copy(), first.output.copy())
            fold(name, into, second)
            parts = [into.maximum.copy(), into.total.copy(), into.output.copy().reshape(-1)]
            _kernels.ops.attention_finish(name, into.maximum, into.total, into.output, sinks)
            results.append(np.concatenate([*parts, into.output.reshape(-1)]))
        assert_same_bits(*results)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", [CACHE_F16, CacheType.Q4_0])
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"),
    [(1, None, False), (37, None, False), (300, None, True), (None, 1.5, False), (None, None, True), (90, 4.0, True)],
)
def test_windows_soft_caps_and_sinks_are_close_to_float64(table, cache_type, window, softcap, has_sinks):
    q, keys, values = random_case(9, 64, 700, cache_type, seed=11)
    q *= np.float32(3)
    limit = np.array([700, 1, 2, 300, 301, 256, 257, 650, 31], np.int32)
    sinks = np.random.default_rng(12).standard_normal(9).astype(np.float32) * 4 if has_sinks else None
    pages = [pages_of(array, cache_type, keys=is_key) for array, is_key in ((keys, True), (values, False))]
    y = attend(table, q, limit, *pages, cache_type, 0.125, window or EVERYTHING, softcap or 0.0, sinks)
    expected = reference.attention(q, keys, values, limit, 0.125, window=window, softcap=softcap, sinks=sinks)
    # As without them; a capped score errs by a few roundings of the cap more.
    magnitude = np.abs(q) @ np.abs(keys).T * 0.125
    tolerance = (32 * magnitude.max() + 4 * (softcap or 0) + 64) * EPSILON * np.abs(values).max()
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance / 4)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", CacheType)
def test_what_lies_before_the_window_changes_no_bit(table, cache_type):
    q, keys, values = random_case(11, 64, 200, cache_type, seed=13)
    for window, limits in (
        (20, range(180, 191)),
        (1, range(1, 12)),
        (33, (200, 5, 64, 33, 32, 97, 98, 99, 100, 101, 31)),
    ):
        limit = np.array(list(limits), np.int32)
        poisoned = [keys.copy(), values.copy()]
        first = max(0, int(limit.min()) - window)
        for array in poisoned:
            array[:first] = np.nan
        clean, dirty = (
            attend_chunk(
                table,
                q,
                limit,
                0,
                pages_of(k, cache_type, keys=True),
                pages_of(v, cache_type, keys=False),
                cache_type,
                0.125,
                window,
            )
            for k, v in ((keys, values), poisoned)
        )
        assert np.isfinite(clean.output).all()
        assert_same_bits(dirty.output, clean.output)
        alone = [
            attend_chunk(
                table,
                q[i : i + 1].copy(),
                limit[i : i + 1].copy(),
                0,
                pages_of(keys, cache_type, keys=True),
                pages_of(values, cache_type, keys=False),
                cache_type,
                0.125,
                window,
            ).output[0]
            for i in range(11)
        ]
        assert_same_bits(np.stack(alone), clean.output)


@pytest.mark.parametrize("table", TABLES)
def test_a_window_of_everything_is_no_window_and_a_hopeless_sink_no_sink(table):
    q, keys, values = random_case(5, 64, 300, CACHE_F16, seed=14)
    limit = np.array([300, 299, 100, 1, 257], np.int32)
    pages = [pages_of(array, CACHE_F16, keys=is_key) for array, is_key in ((keys, True), (values, False))]
    plain = attend(table, q, limit, *pages, CACHE_F16, 0.125)
    assert_same_bits(attend(table, q, limit, *pages, CACHE_F16, 0.125, window=300), plain)
    sinks = np.full(5, -1000, np.float32)
    assert_same_bits(attend(table, q, limit, *pages, CACHE_F16, 0.125, sinks=sinks), plain)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("head_size", [16, 40, 64])
def test_pages_are_laid_out_as_the_contract_says(table, head_size):
    rows = np.random.default_rng(5).standard_normal((70, head_size)).astype(np.float32) * 100
    padded = np.zeros((96, head_size), np.float32)
    padded[:70] = rows
    by_page = padded.reshape(3, PAGE_TOKENS, head_size)
    for cache_type in CacheType:
        shape = RowShape(cache_type, head_size)
        cells, scales = cells_and_scales(encode(by_page, cache_type), shape)
        stored = {is_key: pages_of(rows, cache_type, keys=is_key, table=table, garbage=0) for is_key in (True, False)}
        for is_key, pages in stored.items():
            cell_bytes = PAGE_TOKENS * shape.cells * cells.itemsize
            parts = [(pages[:, :cell_bytes], cells)] + ([] if scales is None else [(pages[:, cell_bytes:], scales)])
            for actual, expected in parts:
                found = actual.copy().view(expected.dtype)
                width = expected.shape[-1]
                if is_key:
                    found = found.reshape(3, width, PAGE_TOKENS).transpose(0, 2, 1)
                found = found.reshape(3 * PAGE_TOKENS, width)[:70]
                np.testing.assert_array_equal(found, expected.reshape(3 * PAGE_TOKENS, width)[:70])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cache_type", [CacheType.BF16, CacheType.Q8_0, CacheType.Q4_0])
def test_rows_of_every_magnitude_are_stored_as_the_contract_says(table, cache_type):
    rng = np.random.default_rng(15)
    rows = rng.standard_normal((256, 96)).astype(np.float32)
    rows *= np.float32(2) ** rng.integers(-40, 20, (256, 1)).astype(np.float32)
    rows[0] = 0
    rows[1] = -0.0
    rows[2, 5], rows[3, 40], rows[4, 90] = np.nan, np.inf, -np.inf
    rows[5, :32] = np.arange(-16, 16)
    rows[6, :32] = 1e30
    shape = RowShape(cache_type, 96)
    cells, scales = cells_and_scales(encode(rows, cache_type), shape)
    pages = pages_of(rows, cache_type, keys=False, table=table, garbage=0)
    cell_bytes = PAGE_TOKENS * shape.cells * cells.itemsize
    found = pages[:, :cell_bytes].copy().view(cells.dtype).reshape(256, -1)
    kept = np.ones(256, bool)
    if cache_type == CacheType.BF16:
        kept[2] = False  # a NaN has many forms
        assert (found[2, 5] & 0x7FFF) > 0x7F80
    else:
        found_scales = pages[:, cell_bytes:].copy().view(np.float16).reshape(256, -1)
        np.testing.assert_array_equal(found_scales, scales)
    np.testing.assert_array_equal(found[kept], cells[kept])


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
