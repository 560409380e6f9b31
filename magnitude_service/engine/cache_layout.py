"""Where a key or a value lies in a pool of key/value pages, and the canonical form of an exported page.

The pool is page-major, so that a page is one piece of memory that can be given back or spilled:

    page p │ layer 0: keys   [K heads][D][PAGE_TOKENS]      a head's key page is transposed: one row per dimension,
           │          values [K heads][PAGE_TOKENS][D]      so that scores of a page's positions are one sweep
           │ layer 1: …

Elements are float32 or float16, in the machine's (little-endian) order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.program import CacheShape


class CacheType(enum.IntEnum):
    """Element of the key/value cache. `CacheType` in kernels/csrc/ops.h has the same numbers."""

    F32 = 0
    F16 = 1

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The NumPy type of one element."""
        return np.dtype(np.float32 if self is CacheType.F32 else np.float16)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Sizes in a pool of pages, and views of it."""

    shape: CacheShape
    cache_type: CacheType

    @property
    def head_bytes(self) -> int:
        """The keys (or the values) of one head in one page of one layer."""
        return PAGE_TOKENS * self.shape.head_size * self.cache_type.dtype.itemsize

    @property
    def layer_bytes(self) -> int:
        """Keys and values of all heads in one page of one layer."""
        return 2 * self.shape.key_value_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """One page: PAGE_TOKENS tokens in all layers."""
        return self.shape.layers * self.layer_bytes

    def layer_views(self, buffer: NDArray[np.uint8], layer: int) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Writable views of one layer in all pages.

        Shapes: keys [pages, K, D, PAGE_TOKENS], values [pages, K, PAGE_TOKENS, D].
        """
        heads, size = self.shape.key_value_heads, self.shape.head_size
        pool = buffer.view(self.cache_type.dtype).reshape(-1, self.shape.layers, 2, heads, size * PAGE_TOKENS)
        keys, values = pool[:, layer, 0], pool[:, layer, 1]
        return keys.reshape(-1, heads, size, PAGE_TOKENS), values.reshape(-1, heads, PAGE_TOKENS, size)

    def export_page(self, buffer: NDArray[np.uint8], page: int, tokens: int) -> NDArray[np.floating]:
        """A copy of a page's first `tokens` positions in canonical form.

        Shapes: buffer u8 [pages * page_bytes]; result [L, 2, K, tokens, D] in the cache's element type, keys at
        index 0 of the second axis and values at index 1.
        """
        keys, values = self._views(buffer, page)
        exported = np.empty(self._canonical_shape(tokens), self.cache_type.dtype)
        exported[:, 0] = keys[:, :, :, :tokens].transpose(0, 1, 3, 2)
        exported[:, 1] = values[:, :, :tokens, :]
        return exported

    def import_page(self, buffer: NDArray[np.uint8], page: int, exported: NDArray[np.floating]) -> None:
        """Writes what `export_page` gave into a page; positions behind it keep what they hold.

        Raises: AssertionError, where shape or element type is another layout's.
        """
        tokens = exported.shape[3]
        assert exported.shape == self._canonical_shape(tokens), f"a page of this cache is not {exported.shape}"
        assert exported.dtype == self.cache_type.dtype, f"this cache holds {self.cache_type.name}"
        keys, values = self._views(buffer, page)
        keys[:, :, :, :tokens] = exported[:, 0].transpose(0, 1, 3, 2)
        values[:, :, :tokens, :] = exported[:, 1]

    def _canonical_shape(self, tokens: int) -> tuple[int, int, int, int, int]:
        assert 0 < tokens <= PAGE_TOKENS, f"a page holds {PAGE_TOKENS} tokens, not {tokens}"
        return self.shape.layers, 2, self.shape.key_value_heads, tokens, self.shape.head_size

    def _views(self, buffer: NDArray[np.uint8], page: int) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Writable views of one page: keys [L, K, D, PAGE_TOKENS] and values [L, K, PAGE_TOKENS, D]."""
        begin = page * self.page_bytes
        assert 0 <= begin <= buffer.nbytes - self.page_bytes, f"page {page} lies outside the pool"
        halves = buffer[begin : begin + self.page_bytes].view(self.cache_type.dtype)
        heads, size = self.shape.key_value_heads, self.shape.head_size
        both = halves.reshape(self.shape.layers, 2, heads * size * PAGE_TOKENS)
        keys = both[:, 0].reshape(self.shape.layers, heads, size, PAGE_TOKENS)
        values = both[:, 1].reshape(self.shape.layers, heads, PAGE_TOKENS, size)
        return keys, values


class PageMemory(Protocol):
    """The memory of the key/value pages that an executor reads and writes (`allocator.KeyValueCache`)."""

    layout: CacheLayout
    pages_total: int
    buffer: NDArray[np.uint8]
