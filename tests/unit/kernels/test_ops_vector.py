"""Norms, activations, rotations, softmax sums: close to float64, and the same bits on every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest

from magnitude_service.kernels import _kernels, reference

TABLES = _kernels.supported_tables()
VECTOR_TABLES = [table for table in TABLES if table != "scalar"]
LENGTHS = (1, 2, 15, 16, 17, 33, 64, 100, 576, 1536)
EPSILON = float(np.finfo(np.float32).eps)


def assert_same_bits(actual, expected):
    """Equal as bits, but any NaN equals any other."""
    actual, expected = np.array(actual, np.float32), np.array(expected, np.float32)
    actual[np.isnan(actual)] = np.nan
    expected[np.isnan(expected)] = np.nan
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def vector(length, seed, spread=1.0):
    return (np.random.default_rng(seed).standard_normal(length) * spread).astype(np.float32)


def rms_norm(table, x, w, epsilon=1e-5):
    y = np.full(len(x), np.nan, np.float32)
    _kernels.ops.rms_norm(table, x, w, epsilon, y)
    return y


def silu_multiply(table, gate, up):
    y = np.full(len(gate), np.nan, np.float32)
    _kernels.ops.silu_multiply(table, gate, up, y)
    return y


def exponential(table, x):
    """exp(x) for x <= 0: folding (m, l, o) = (x, 1, 1) into (0, 1, 0) leaves o = exp(x - 0)."""
    results = np.empty(len(x), np.float32)
    for i, exponent in enumerate(x):
        state = [np.full(shape, value, np.float32) for shape, value in ((1, 0), (1, 1), ((1, 1), 0))]
        one = np.ones(1, np.float32)
        _kernels.ops.attention_fold(table, *state, np.array([exponent], np.float32), one, one.reshape(1, 1))
        results[i] = state[2][0, 0]
    return results


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("length", LENGTHS)
def test_rms_norm_is_close_to_float64(table, length):
    x, w = vector(length, 1, 3.0), vector(length, 2)
    y = rms_norm(table, x, w)
    np.testing.assert_allclose(y, reference.rms_norm(x, w, 1e-5), rtol=8 * EPSILON, atol=0)


@pytest.mark.parametrize("table", TABLES)
def test_rms_norm_uses_its_epsilon(table):
    x, w = np.full(32, 1e-3, np.float32), np.ones(32, np.float32)
    np.testing.assert_allclose(rms_norm(table, x, w, 1e-6), 1e-3 / math.sqrt(2e-6), rtol=8 * EPSILON)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("length", LENGTHS)
def test_silu_multiply_is_close_to_float64(table, length):
    gate, up = vector(length, 3, 6.0), vector(length, 4)
    y = silu_multiply(table, gate, up)
    np.testing.assert_allclose(y, reference.silu_multiply(gate, up), rtol=8 * EPSILON, atol=1e-37)


@pytest.mark.parametrize("table", TABLES)
def test_silu_of_extreme_gates_has_its_limits(table):
    gate = np.array([-1e30, -200, -88.5, 88.5, 200, 1e30, 0, np.nan], np.float32)
    y = silu_multiply(table, gate, np.ones(8, np.float32))
    np.testing.assert_array_equal(y[[0, 1, 6]], [0, 0, 0])
    np.testing.assert_array_equal(y[3:6], gate[3:6])
    assert -1e-35 < y[2] < 0
    assert np.isnan(y[7])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("head_size", "dimensions"), [(64, 64), (128, 128), (80, 80), (64, 32), (40, 40), (6, 6)])
def test_rope_rotates_its_pairs_and_leaves_the_rest(table, halves, head_size, dimensions):
    head = vector(head_size, 5)
    angles = np.random.default_rng(6).uniform(-3, 3, dimensions // 2)
    interleaved = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32).reshape(-1)
    rotated = head.copy()
    _kernels.ops.rope(table, rotated, interleaved, halves)
    expected = reference.rope(head, interleaved, halves=halves)
    # Two products of at most |head| each, and their sum.
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=2 * EPSILON * np.abs(head).max())
    np.testing.assert_array_equal(rotated[dimensions:], head[dimensions:])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("length", LENGTHS)
def test_add_is_one_addition(table, length):
    x, y = vector(length, 7), vector(length, 8)
    total = x.copy()
    _kernels.ops.add(table, total, y)
    np.testing.assert_array_equal(total, x + y)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("length", [*LENGTHS, 49153])
def test_softmax_statistics_are_close_to_float64(table, length):
    x = vector(length, 9, 5.0)
    x[length // 3] = -np.inf if length > 1 else 0
    largest, total = _kernels.ops.softmax_statistics(table, x)
    expected_largest, expected_total = reference.softmax_statistics(x)
    assert largest == expected_largest
    assert total == pytest.approx(expected_total, rel=(length / 16 + 4) * EPSILON)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("length", [1, 16, 33, 100])
def test_softmax_statistics_refuse_what_has_no_softmax(table, length):
    for poison in (np.nan, np.inf, -np.nan):
        for place in {0, length // 2, length - 1}:
            x = vector(length, 10)
            x[place] = poison
            assert _kernels.ops.softmax_statistics(table, x) is None
    assert _kernels.ops.softmax_statistics(table, np.full(length, -np.inf, np.float32)) is None


@pytest.mark.parametrize("table", TABLES)
def test_exp_errs_by_at_most_its_documented_units(table):
    x = -np.concatenate([np.geomspace(1e-8, 87.3, 3000), np.linspace(0, 87.3, 3000)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(exponential(table, x) - exact) / unit).max() <= 1.1


@pytest.mark.parametrize("table", TABLES)
def test_exp_ends_in_subnormals_and_then_zero(table):
    x = np.array([-87.5, -90, -95, -100, -103.2, -104.5, -200, -1e30, -np.inf], np.float32)
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    np.testing.assert_allclose(
        exponential(table, x), np.exp(x.astype(np.float64)), rtol=1.1 * EPSILON, atol=0.51 * smallest
    )
    assert np.isnan(exponential(table, np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize("table", VECTOR_TABLES)
@pytest.mark.parametrize("length", LENGTHS)
def test_vector_tables_have_the_scalar_tables_bits(table, length):
    for seed, spread in enumerate((1e-3, 1.0, 30.0, 1e20)):
        x, w = vector(length, 20 + seed, spread), vector(length, 40 + seed)
        assert_same_bits(rms_norm(table, x, w), rms_norm("scalar", x, w))
        assert_same_bits(silu_multiply(table, x, w), silu_multiply("scalar", x, w))
        assert_same_bits(_kernels.ops.softmax_statistics(table, x), _kernels.ops.softmax_statistics("scalar", x))
        for halves in (False, True):
            angles = vector(length // 2 * 2, 60 + seed)
            rotated, plain = x.copy(), x.copy()
            _kernels.ops.rope(table, rotated, angles, halves)
            _kernels.ops.rope("scalar", plain, angles, halves)
            assert_same_bits(rotated, plain)


@pytest.mark.parametrize("table", VECTOR_TABLES)
def test_exp_has_the_scalar_tables_bits_over_its_whole_range(table):
    x = -np.concatenate([np.geomspace(1e-30, 110, 4000), np.linspace(86, 105, 4000)]).astype(np.float32)
    assert_same_bits(exponential(table, x), exponential("scalar", x))
    gate = np.concatenate([-x, x])
    ones = np.ones(len(gate), np.float32)
    assert_same_bits(silu_multiply(table, gate, ones), silu_multiply("scalar", gate, ones))


@pytest.mark.parametrize("table", VECTOR_TABLES)
def test_special_numbers_come_out_as_from_the_scalar_table(table):
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 1, -1] * 3, np.float32)
    w = np.roll(special, 5)
    assert_same_bits(rms_norm(table, special, w), rms_norm("scalar", special, w))
    assert_same_bits(silu_multiply(table, special, w), silu_multiply("scalar", special, w))
    negative_zeros = np.full(33, -0.0, np.float32)
    assert_same_bits(
        _kernels.ops.softmax_statistics(table, negative_zeros),
        _kernels.ops.softmax_statistics("scalar", negative_zeros),
    )
