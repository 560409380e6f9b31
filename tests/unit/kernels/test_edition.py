"""The bits of results belong to an edition: sessions that were computed in another one are computed again."""

from __future__ import annotations

import hashlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from magnitude_service.engine.cache_rows import CacheType
from magnitude_service.engine.options import ARITHMETIC_EDITION
from magnitude_service.kernels import _kernels
from tests.unit.kernels.conftest import Weights
from tests.unit.kernels.test_ops_attention import attend_chunk, pages_of
from tests.unit.kernels.test_ops_matmul import TYPES, multiply

DIGESTS = {
    1: "abf0c84143d31e9b68d3827609b86aff4e22546c50eb9d152ee2e60aac633a7e",  # multiplied and added in two roundings
    2: "93bd4e0197ea30252dfccab5534d23b7a466547a270b1cba60b98aa93aa9f14c",
}
"""SHA-256 of what this file computes, by edition; other instruction sets are compared with the plain one elsewhere."""

TOKENS, ROWS, COLUMNS = 3, 16, 512


def numbers(draws: np.random.RandomState, *shape: int) -> np.ndarray:
    """Float32 between -16 and 16, the same on every machine."""
    return (draws.randint(-1024, 1024, shape) / np.float32(64)).astype(np.float32)


def products(draws: np.random.RandomState, name: str) -> np.ndarray:
    """Of weights whose bytes are ordinary numbers in every type."""
    tensor_type = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[tensor_type]
    data = draws.randint(0x20, 0x40, (ROWS, COLUMNS // elements * size)).astype(np.uint8)
    weights = Weights(tensor_type, data, values=np.empty(0, np.float32))
    return multiply("scalar", weights, numbers(draws, TOKENS, COLUMNS))


def attention(draws: np.random.RandomState, cache_type: CacheType) -> list[np.ndarray]:
    """Of one chunk, with a soft cap."""
    keys, values = numbers(draws, 40, 64), numbers(draws, 40, 64)
    pages = [pages_of(rows, cache_type, keys=is_key) for rows, is_key in ((keys, True), (values, False))]
    limit = np.array([7, 40], np.int32)
    found = attend_chunk("scalar", numbers(draws, 2, 64), limit, 0, *pages, cache_type, 0.125, 32, 30.0)
    return [found.maximum, found.total, found.output]


def vectors(draws: np.random.RandomState) -> list[np.ndarray]:
    """What stands between the products."""
    x, w, normalised, gated = (numbers(draws, COLUMNS) for _ in range(4))
    _kernels.ops.rms_norm("scalar", x, w, 1e-6, normalised)
    _kernels.ops.silu_multiply("scalar", x, w, gated)
    return [normalised, gated, np.array(_kernels.ops.softmax_statistics("scalar", x), np.float32)]


def test_results_have_the_bits_of_this_edition():
    draws = np.random.RandomState(1)
    results = [products(draws, name) for name in TYPES] + vectors(draws)
    for cache_type in CacheType:
        results += attention(draws, cache_type)
    assert all(np.isfinite(result).all() for result in results)
    digest = hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()
    assert digest == DIGESTS.get(ARITHMETIC_EDITION), "other bits need another edition (engine/options.py)"
    assert max(DIGESTS) == ARITHMETIC_EDITION
