"""Random weights of every tensor type, as their bytes and as the oracle's float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

# Where a block keeps its f16 numbers: scale, then minimum.
F16_OFFSETS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


@dataclass(frozen=True)
class Weights:
    """`data` u8 [N, row bytes] as in a file; `values` f32 [N, K] as the gguf package reads them."""

    type: GGMLQuantizationType
    data: NDArray[np.uint8]
    values: NDArray[np.float32]


def random_blocks(name: str, rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Any bytes are a valid block once its scales are numbers: ordinary, subnormal, zero, of either sign."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for offset in F16_OFFSETS[name]:
        scales = rng.standard_normal((rows, columns // elements, 1)) * 0.02
        special = rng.random(scales.shape)
        scales[special < 0.1] *= 1e-4  # subnormal in f16
        scales[special < 0.02] = 0
        blocks[:, :, offset : offset + 2] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_floats(name: str, rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    values = (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32)
    if name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype({"F32": np.float32, "F16": np.float16}[name]).view(np.uint8)


@pytest.fixture
def random_weights() -> Callable[[str, int, int, int], Weights]:
    """(type name, N, K, seed) to weights."""

    def make(name: str, rows: int, columns: int, seed: int) -> Weights:
        rng = np.random.default_rng(seed)
        build = random_blocks if name in F16_OFFSETS else random_floats
        data = build(name, rows, columns, rng)
        tensor_type = GGMLQuantizationType[name]
        return Weights(tensor_type, data, np.asarray(dequantize(data, tensor_type), np.float32).reshape(rows, columns))

    return make
