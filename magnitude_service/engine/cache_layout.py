"""Where a key or a value lies in a pool of key/value pages, and the canonical form of an exported page.

The pool is page-major, so that a page is one piece of memory that can be given back or spilled:

    page p │ layer 0: keys   of K heads    each [cells][PAGE_TOKENS], then [scales][PAGE_TOKENS]: transposed, so that
           │                               scores of a page's positions are one sweep
           │          values of K heads    each [PAGE_TOKENS][cells], then [PAGE_TOKENS][scales]
           │ layer 1: …

Cells are a position's D elements, or the bytes of their codes; scales are float16, one for 32 elements, and exist in
the types of blocks alone (`cache_rows.py`). All numbers are in the machine's (little-endian) order.

An exported page is [layer, key/value, head, position, row], a row being D elements, BF16's bits, or GGUF's blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.cache_rows import (
    CacheType,
    Encoded,
    Float32,
    RowShape,
    cells_and_scales,
    decode,
    encode,
    encoded_from,
)
from magnitude_service.engine.program import CacheShape

__all__ = ["CacheLayout", "CacheType", "PageMemory"]

KEYS, VALUES = 0, 1
"""The two sides of a layer, in this order in a page and in an exported one."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Writable views of rows in pages: cells [..., PAGE_TOKENS, cells], scales [..., PAGE_TOKENS, blocks] or none."""

    shape: RowShape
    cells: Encoded
    scales: NDArray[np.float16] | None

    def read(self, at: tuple[object, ...]) -> Encoded:
        """The rows at an index, encoded."""
        scales = None if self.scales is None else self.scales[at]  # type: ignore[index]
        return encoded_from(self.cells[at], scales, self.shape)  # type: ignore[index]

    def write(self, at: tuple[object, ...], encoded: Encoded) -> None:
        """Puts encoded rows where an index says."""
        cells, scales = cells_and_scales(encoded, self.shape)
        self.cells[at] = cells  # type: ignore[index]
        if self.scales is not None:
            self.scales[at] = scales  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Sizes in a pool of pages, and views of it."""

    shape: CacheShape
    cache_type: CacheType

    @property
    def row(self) -> RowShape:
        """The keys (or the values) of one head at one position."""
        return RowShape(self.cache_type, self.shape.head_size)

    @property
    def head_bytes(self) -> int:
        """The keys (or the values) of one head in one page of one layer."""
        return PAGE_TOKENS * self.row.size_bytes

    @property
    def layer_bytes(self) -> int:
        """Keys and values of all heads in one page of one layer."""
        return 2 * self.shape.key_value_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """One page: PAGE_TOKENS tokens in all layers."""
        return self.shape.layers * self.layer_bytes

    def write_rows(
        self,
        buffer: NDArray[np.uint8],
        layer: int,
        at: tuple[NDArray[np.integer], NDArray[np.integer]],
        keys: Float32,
        values: Float32,
    ) -> None:
        """Puts keys and values of some positions into their pages, rounded as the cache type rounds.

        Shapes: `at` pages and slots [P]; keys, values [P, K, D].
        """
        pages, slots = at
        for side, rows in ((KEYS, keys), (VALUES, values)):
            self._layer_rows(buffer, layer, side).write((pages, slice(None), slots), encode(rows, self.cache_type))

    def read_rows(
        self, buffer: NDArray[np.uint8], layer: int, at: tuple[NDArray[np.integer], NDArray[np.integer]]
    ) -> tuple[Float32, Float32]:
        """Keys and values [P, K, D] of some positions; `at` as in `write_rows`."""
        pages, slots = at
        keys, values = (
            decode(
                self._layer_rows(buffer, layer, side).read((pages, slice(None), slots)),
                self.cache_type,
                self.shape.head_size,
            )
            for side in (KEYS, VALUES)
        )
        return keys, values

    def export_page(self, buffer: NDArray[np.uint8], page: int, tokens: int) -> Encoded:
        """A copy of a page's first `tokens` positions in canonical form.

        Shapes: buffer u8 [pages * page_bytes]; result [L, 2, K, tokens, RowShape.encoded] in the cache type's dtype,
        keys at index 0 of the second axis and values at index 1.
        """
        exported = np.empty(self._canonical_shape(tokens), self.cache_type.dtype)
        for side in (KEYS, VALUES):
            exported[:, side] = self._page_rows(buffer, page, side).read((..., slice(tokens), slice(None)))
        return exported

    def import_page(self, buffer: NDArray[np.uint8], page: int, exported: Encoded) -> None:
        """Writes what `export_page` gave into a page; positions behind it keep what they hold.

        Raises: AssertionError, where shape or element type is another layout's.
        """
        tokens = exported.shape[3]
        assert exported.shape == self._canonical_shape(tokens), f"a page of this cache is not {exported.shape}"
        assert exported.dtype == self.cache_type.dtype, f"this cache holds {self.cache_type.name}"
        for side in (KEYS, VALUES):
            self._page_rows(buffer, page, side).write((..., slice(tokens), slice(None)), exported[:, side])

    def _canonical_shape(self, tokens: int) -> tuple[int, int, int, int, int]:
        assert 0 < tokens <= PAGE_TOKENS, f"a page holds {PAGE_TOKENS} tokens, not {tokens}"
        return self.shape.layers, 2, self.shape.key_value_heads, tokens, self.row.encoded

    def _layer_rows(self, buffer: NDArray[np.uint8], layer: int, side: int) -> _Rows:
        """One side of one layer in all pages: [pages, K, PAGE_TOKENS, …]."""
        heads = buffer.reshape(-1, self.shape.layers, 2, self.shape.key_value_heads, self.head_bytes)
        return self._rows(heads[:, layer, side], side)

    def _page_rows(self, buffer: NDArray[np.uint8], page: int, side: int) -> _Rows:
        """One side of all layers in one page: [L, K, PAGE_TOKENS, …]."""
        begin = page * self.page_bytes
        assert 0 <= begin <= buffer.nbytes - self.page_bytes, f"page {page} lies outside the pool"
        part = buffer[begin : begin + self.page_bytes]
        heads = part.reshape(self.shape.layers, 2, self.shape.key_value_heads, self.head_bytes)
        return self._rows(heads[:, side], side)

    def _rows(self, heads: NDArray[np.uint8], side: int) -> _Rows:
        """Views of heads u8 [..., head_bytes]."""
        row, outer = self.row, heads.shape[:-1]
        scales_begin = self.head_bytes - PAGE_TOKENS * row.blocks * 2

        def positions(part: NDArray[Any], width: int) -> NDArray[Any]:
            if side == VALUES:
                return part.reshape(*outer, PAGE_TOKENS, width)
            return part.reshape(*outer, width, PAGE_TOKENS).swapaxes(-1, -2)

        cells = positions(heads[..., :scales_begin].view(self.cache_type.dtype), row.cells)
        if not row.blocks:
            return _Rows(row, cells, None)
        return _Rows(row, cells, positions(heads[..., scales_begin:].view(np.float16), row.blocks))


class PageMemory(Protocol):
    """The memory of the key/value pages that an executor reads and writes (`allocator.KeyValueCache`)."""

    layout: CacheLayout
    pages_total: int
    buffer: NDArray[np.uint8]
