"""Matrix products: close to float64, and the same bits on every instruction set, for every M and every split."""

from __future__ import annotations

import numpy as np
import pytest

from magnitude_service.kernels import _kernels, reference

TABLES = _kernels.supported_tables()
VECTOR_TABLES = [table for table in TABLES if table != "scalar"]
LEGACY_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_TYPES = ("Q4_K", "Q5_K", "Q6_K")
FLOAT_TYPES = ("F32", "F16", "BF16")
TYPES = LEGACY_TYPES + K_TYPES + FLOAT_TYPES
ROUNDING = 2.0**-24
TOKENS = (*range(1, 18), 64)


def columns_of(name):
    """Lengths with odd tails: of chunks of eight blocks, of blocks, of vectors."""
    if name in LEGACY_TYPES:
        return (32, 96, 352, 800)
    return (256, 768, 1280) if name in K_TYPES else (1, 15, 16, 100, 576)


def random_inputs(tokens, columns, seed):
    """Activations with an outlier, a block of zeros and magnitudes far apart."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    x *= np.exp(rng.uniform(-6, 3, (tokens, 1))).astype(np.float32)
    x[:, columns // 3] *= 50
    x[tokens // 2, :32] = 0
    return x


def multiply(table, weights, x, *, bias=None, y=None, n_range=None, pool=None):
    tokens, rows = len(x), len(weights.data)
    accumulate = y is not None
    y = np.full((tokens, rows), np.nan, np.float32) if y is None else y.copy()
    begin, end = n_range or (0, rows)
    activations = _kernels.ops.Activations(table, x)
    _kernels.ops.matmul(
        activations,
        int(weights.type),
        weights.data,
        y,
        bias,
        accumulate=accumulate,
        n_begin=begin,
        n_end=end,
        pool=pool,
    )
    return y


def assert_same_bits(actual, expected):
    """Equal as bits, but any NaN equals any other."""
    assert actual.shape == expected.shape
    actual, expected = actual.copy(), expected.copy()
    actual[np.isnan(actual)] = np.nan
    expected[np.isnan(expected)] = np.nan
    differ = actual.view(np.uint32) != expected.view(np.uint32)
    assert not differ.any(), f"{differ.sum()} of {differ.size} differ, first {actual[differ][0]} {expected[differ][0]}"


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_products_are_close_to_float64(table, name, random_weights):
    for columns in columns_of(name):
        weights = random_weights(name, 37, columns, seed=columns)
        x = random_inputs(5, columns, seed=columns + 1)
        y = multiply(table, weights, x)
        exact = reference.matmul(x, weights.values)
        # Rounded sums: each of the (at most K) additions and products errs by half a unit of what has been summed.
        magnitude = np.abs(x).astype(np.float64) @ np.abs(weights.values).astype(np.float64).T
        tolerance = (columns / 16 + 8) * ROUNDING * magnitude
        if name not in FLOAT_TYPES:
            # Rounded activations: each errs by half of its block's scale.
            _, scale = reference.quantize(x)
            steps = np.repeat(scale, reference.BLOCK, axis=1).astype(np.float64) / 2
            tolerance = tolerance * 3 + steps @ np.abs(weights.values).astype(np.float64).T
        assert (np.abs(y - exact) <= tolerance).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", LEGACY_TYPES + K_TYPES)
def test_quantised_products_err_by_rounding_only_once_activations_are_integers(table, name, random_weights):
    for columns in columns_of(name):
        weights = random_weights(name, 21, columns, seed=columns)
        q, scale = reference.quantize(random_inputs(3, columns, seed=columns + 1))
        scale = np.exp2(np.round(np.log2(np.maximum(scale, 1e-9)))).astype(np.float32)
        q[:, ::32] = 32512  # so that quantising again finds the same scale
        x = (q * np.repeat(scale, reference.BLOCK, axis=1)).astype(np.float32)
        again, same_scale = reference.quantize(x)
        np.testing.assert_array_equal(again, q)
        np.testing.assert_array_equal(same_scale, scale)
        y = multiply(table, weights, x)
        magnitude = np.abs(x).astype(np.float64) @ np.abs(weights.values).astype(np.float64).T
        # A minimum is subtracted as a sum of its own: it is part of what rounds.
        largest = np.abs(weights.values).max() * np.abs(x).astype(np.float64).sum(axis=1, keepdims=True)
        error = np.abs(y - reference.matmul(x, weights.values))
        assert (error <= (columns / 32 + 8) * ROUNDING * (magnitude + 2 * largest)).all()


@pytest.mark.parametrize("table", VECTOR_TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_vector_tables_have_the_scalar_tables_bits(table, name, random_weights):
    for columns in columns_of(name):
        for rows in (1, 16, 37):
            weights = random_weights(name, rows, columns, seed=columns + rows)
            for tokens in TOKENS if rows == 37 else (1, 3, 9):
                x = random_inputs(tokens, columns, seed=tokens)
                assert_same_bits(multiply(table, weights, x), multiply("scalar", weights, x))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_the_same_bits_alone_and_among_others(table, name, random_weights):
    columns = columns_of(name)[-1]
    weights = random_weights(name, 35, columns, seed=7)
    x = random_inputs(64, columns, seed=8)
    alone = np.concatenate([multiply(table, weights, x[m : m + 1]) for m in range(64)])
    for tokens in TOKENS:
        assert_same_bits(multiply(table, weights, x[:tokens]), alone[:tokens])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_ranges_of_outputs_have_the_bits_of_the_whole_and_touch_nothing_else(table, name, random_weights):
    columns = columns_of(name)[-1]
    weights = random_weights(name, 75, columns, seed=9)
    for tokens in (1, 4, 19):
        x = random_inputs(tokens, columns, seed=10)
        whole = multiply(table, weights, x)
        for begin, end in ((0, 16), (16, 64), (32, 75), (64, 75), (48, 50)):
            part = multiply(table, weights, x, n_range=(begin, end))
            assert_same_bits(part[:, begin:end], whole[:, begin:end])
            assert np.isnan(np.delete(part, np.s_[begin:end], axis=1)).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_rows_shared_out_over_threads_have_the_bits_of_one_call(table, name, random_weights):
    columns = columns_of(name)[-1]
    weights = random_weights(name, 150, columns, seed=18)
    pool = _kernels.ops.Pool(3)
    for tokens in (1, 6, 33):
        x = random_inputs(tokens, columns, seed=19)
        assert_same_bits(multiply(table, weights, x, pool=pool), multiply(table, weights, x))


@pytest.mark.parametrize("name", LEGACY_TYPES + K_TYPES)
def test_a_row_longer_than_a_panel_has_the_scalar_tables_bits(name, random_weights):
    weights = random_weights(name, 150, 4352, seed=20)
    x = random_inputs(32, 4352, seed=21)
    for table in VECTOR_TABLES:
        for tokens in (5, 11, 32):
            assert_same_bits(multiply(table, weights, x[:tokens]), multiply("scalar", weights, x[:tokens]))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", TYPES)
def test_bias_and_accumulation_are_one_addition_each(table, name, random_weights):
    columns = columns_of(name)[-1]
    weights = random_weights(name, 37, columns, seed=11)
    rng = np.random.default_rng(12)
    bias = rng.standard_normal(37).astype(np.float32)
    for tokens in (1, 3, 12):
        x = random_inputs(tokens, columns, seed=13)
        before = rng.standard_normal((tokens, 37)).astype(np.float32)
        plain = multiply(table, weights, x)
        assert_same_bits(multiply(table, weights, x, bias=bias), plain + bias)
        assert_same_bits(multiply(table, weights, x, y=before), before + plain)
        assert_same_bits(multiply(table, weights, x, bias=bias, y=before), before + (plain + bias))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_input_is_seen_in_its_own_token_only(table, name, poison, random_weights):
    columns = columns_of(name)[-1]
    weights = random_weights(name, 20, columns, seed=14)
    for tokens in (3, 9):
        x = random_inputs(tokens, columns, seed=15)
        sound = multiply(table, weights, x)
        x[1, columns // 2] = poison
        y = multiply(table, weights, x)
        assert not np.isfinite(y[1]).any()
        assert_same_bits(np.delete(y, 1, axis=0), np.delete(sound, 1, axis=0))


@pytest.mark.parametrize("table", TABLES)
def test_extreme_magnitudes_do_not_overflow_integers(table, random_weights):
    weights = random_weights("Q8_0", 16, 64, seed=16)
    weights.data.reshape(16, 2, 34)[:, :, 2:] = 0x80  # every code is -128
    for magnitude in (1e-45, 1e-38, 1e-35, 1.0, 1e30, 3.4e38):
        x = np.full((2, 64), magnitude, np.float32)
        x[1] *= -1
        y = multiply(table, weights, x)
        scales = weights.data.reshape(16, 2, 34)[:, :, :2].copy().view(np.float16)[:, :, 0].astype(np.float64)
        expected = -128.0 * 32 * scales.sum(axis=1) * np.float64(x[:1, :1])
        representable = 128 * 32 * np.abs(scales).sum(axis=1)[None] * magnitude < 3e38
        # Below 1e-34 an input counts as zero.
        tolerance = 1e-6 * 128 * 32 * np.abs(scales).sum(axis=1) * magnitude if magnitude > 1e-34 else 1e-31
        assert (np.abs(y[0] - expected[0]) <= tolerance)[representable[0]].all()
        np.testing.assert_array_equal(y[1], -y[0])


@pytest.mark.parametrize("table", TABLES)
def test_arguments_that_do_not_fit_are_refused(table, random_weights):
    weights = random_weights("Q4_K", 16, 256, seed=17)
    y = np.zeros((1, 16), np.float32)
    short = _kernels.ops.Activations(table, np.zeros((1, 128), np.float32))
    with pytest.raises(ValueError, match="no whole blocks"):
        _kernels.ops.matmul(short, 12, weights.data, y, n_end=16)
    activations = _kernels.ops.Activations(table, np.zeros((1, 512), np.float32))
    with pytest.raises(ValueError, match="too short"):
        _kernels.ops.matmul(activations, 12, weights.data, y, n_end=16)
    activations = _kernels.ops.Activations(table, np.zeros((1, 256), np.float32))
    with pytest.raises(ValueError, match="range of rows"):
        _kernels.ops.matmul(activations, 12, weights.data, y, n_begin=8, n_end=16)
    with pytest.raises(TypeError):
        _kernels.ops.matmul(activations, 12, weights.data, y.astype(np.float64), n_end=16)
