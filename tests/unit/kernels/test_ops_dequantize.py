"""Dequantisation: every type's bytes become exactly the numbers that the gguf package reads from them."""

from __future__ import annotations

import numpy as np
import pytest

from magnitude_service.kernels import _kernels

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("table", _kernels.supported_tables())
@pytest.mark.parametrize("name", TYPES)
def test_rows_equal_the_gguf_packages_numbers_exactly(table, name, random_weights):
    for columns in (256, 768, 2560):
        weights = random_weights(name, 5, columns, seed=columns)
        for row, expected in zip(weights.data, weights.values, strict=True):
            y = np.full(columns, np.nan, np.float32)
            _kernels.ops.dequantize(table, int(weights.type), row, y)
            np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("table", _kernels.supported_tables())
def test_every_f16_number_is_read_exactly(table):
    halves = np.arange(65536, dtype=np.uint16)
    y = np.empty(65536, np.float32)
    _kernels.ops.dequantize(table, 1, halves.view(np.uint8), y)
    expected = halves.view(np.float16).astype(np.float32)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(y[numbers].view(np.uint32), expected[numbers].view(np.uint32))
    assert np.isnan(y[~numbers]).all()


def test_a_row_of_broken_blocks_is_refused():
    with pytest.raises(ValueError, match="no whole blocks"):
        _kernels.ops.dequantize("scalar", 12, np.zeros(144, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="too short"):
        _kernels.ops.dequantize("scalar", 12, np.zeros(143, np.uint8), np.zeros(256, np.float32))
