"""One position's keys or values of one head, in every type that a key/value cache can have.

A *row* is D numbers. Encoded, it is what an exported page holds: for the types of blocks the bytes of GGUF's own blocks
along D, so that any reader of GGUF can decode them. In a page the same row is taken apart into cells and scales, which
let kernels load one element of many positions at once (`kernels/csrc/cache_pages.h` draws both).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Elements that share one scale."""

Float32 = NDArray[np.float32]
Encoded = NDArray[Any]
"""Rows in the dtype of their cache type; the last axis is one row."""


class CacheType(enum.IntEnum):
    """Element of the key/value cache. `CacheType` in kernels/csrc/ops.h has the same numbers."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy type of an encoded row: of its elements, of BF16's bits, or of the bytes of its blocks."""
        floats = {CacheType.F32: np.float32, CacheType.F16: np.float16, CacheType.BF16: np.uint16}
        return np.dtype(floats.get(self, np.uint8))


@dataclass(frozen=True, slots=True)
class RowShape:
    """What a row of `elements` numbers consists of in a page."""

    cache_type: CacheType
    elements: int

    @property
    def blocks(self) -> int:
        """Blocks of a row; the last may be incomplete. None where elements have no scale."""
        return -(-self.elements // BLOCK) if self.cache_type in _CODE_BYTES else 0

    @property
    def cells(self) -> int:
        """Elements, or bytes of codes."""
        return self.blocks * _CODE_BYTES[self.cache_type] if self.blocks else self.elements

    @property
    def encoded(self) -> int:
        """Length of an encoded row, in items of the cache type's dtype."""
        return self.cells + 2 * self.blocks

    @property
    def size_bytes(self) -> int:
        """Bytes of a row, in a page and encoded."""
        return self.encoded * self.cache_type.dtype.itemsize


def encode(rows: Float32, cache_type: CacheType) -> Encoded:
    """Rows as a page keeps them, rounded to nearest even. Shapes: [..., D] → [..., RowShape.encoded]."""
    with np.errstate(over="ignore", invalid="ignore"):
        match cache_type:
            case CacheType.F32 | CacheType.F16:
                return rows.astype(cache_type.dtype)
            case CacheType.BF16:
                return _bf16(rows)
            case CacheType.Q8_0:
                return _encode_blocks(rows, _codes_q8_0)
            case CacheType.Q4_0:
                return _encode_blocks(rows, _codes_q4_0)


def decode(encoded: Encoded, cache_type: CacheType, elements: int) -> Float32:
    """The numbers of encoded rows, exactly. Shapes: [..., RowShape.encoded] → [..., elements]."""
    match cache_type:
        case CacheType.F32 | CacheType.F16:
            return encoded.astype(np.float32)
        case CacheType.BF16:
            return (encoded.astype(np.uint32) << 16).view(np.float32)
    shape = RowShape(cache_type, elements)
    blocks = encoded.reshape(*encoded.shape[:-1], shape.blocks, -1)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    codes = blocks[..., 2:]
    if cache_type is CacheType.Q8_0:
        numbers = codes.view(np.int8).astype(np.float32)
    else:
        numbers = np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.float32) - 8
    with np.errstate(invalid="ignore"):
        numbers = (numbers * scales).reshape(*encoded.shape[:-1], -1)
    return np.ascontiguousarray(numbers[..., :elements])


def cells_and_scales(encoded: Encoded, shape: RowShape) -> tuple[Encoded, NDArray[np.float16] | None]:
    """Encoded rows as the two parts that a page keeps apart: [..., cells] and [..., blocks]."""
    if not shape.blocks:
        return encoded, None
    blocks = encoded.reshape(*encoded.shape[:-1], shape.blocks, -1)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    return (blocks[..., 2:] ^ _CELL_FLIP[shape.cache_type]).reshape(*encoded.shape[:-1], shape.cells), scales


def encoded_from(cells: Encoded, scales: NDArray[np.float16] | None, shape: RowShape) -> Encoded:
    """The rows that `cells_and_scales` took apart."""
    if scales is None:
        return np.ascontiguousarray(cells)
    codes = cells.reshape(*cells.shape[:-1], shape.blocks, -1) ^ _CELL_FLIP[shape.cache_type]
    halves = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    return np.concatenate([halves, codes], axis=-1).reshape(*cells.shape[:-1], shape.encoded)


_CODE_BYTES = {CacheType.Q8_0: BLOCK, CacheType.Q4_0: BLOCK // 2}
_CELL_FLIP = {CacheType.Q8_0: np.uint8(0x80), CacheType.Q4_0: np.uint8(0)}
"""A page's cell holds a signed code plus 128, which is the code with its sign bit flipped."""


def _bf16(rows: Float32) -> NDArray[np.uint16]:
    bits = rows.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(rows), bits >> 16 | 0x40, rounded).astype(np.uint16)


Blocks = tuple[NDArray[np.float16], NDArray[np.uint8]]
"""Scales [...] and the bytes of codes [..., n] of blocks."""


def _encode_blocks(rows: Float32, codes_of: Callable[[Float32], Blocks]) -> NDArray[np.uint8]:
    padded = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // BLOCK) * BLOCK), np.float32)
    padded[..., : rows.shape[-1]] = rows
    blocks = padded.reshape(*rows.shape[:-1], -1, BLOCK)
    finite = np.asarray(np.isfinite(blocks).all(axis=-1))
    scales, codes = codes_of(np.where(finite[..., None], blocks, 0))
    halves = np.where(finite, scales, np.float16(np.nan))[..., None].view(np.uint8)
    return np.concatenate([halves, codes], axis=-1).reshape(*rows.shape[:-1], -1)


def _rounded(blocks: Float32, exact: Float32) -> tuple[NDArray[np.float16], Float32]:
    """Scales as float16, and blocks in units of them; all zero where a scale is."""
    scales = exact.astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    with np.errstate(divide="ignore"):
        inverse = np.where(wide == 0, np.float32(0), np.float32(1) / wide)
    return scales, np.rint(blocks * inverse)


def _codes_q8_0(blocks: Float32) -> Blocks:
    scales, codes = _rounded(blocks, (np.abs(blocks).max(axis=-1) / np.float32(127)).astype(np.float32))
    return scales, codes.clip(-127, 127).astype(np.int8).view(np.uint8)


def _codes_q4_0(blocks: Float32) -> Blocks:
    at = np.abs(blocks).argmax(axis=-1)[..., None]
    extreme = np.take_along_axis(blocks, at, axis=-1)[..., 0]
    extreme[extreme == 0] = 0  # whose scale has no sign of a zero
    scales, codes = _rounded(blocks, extreme / np.float32(-8))
    nibbles = (codes.clip(-8, 7) + 8).astype(np.uint8)
    packed = nibbles[..., : BLOCK // 2] | nibbles[..., BLOCK // 2 :] << 4
    return scales, packed.astype(np.uint8)
