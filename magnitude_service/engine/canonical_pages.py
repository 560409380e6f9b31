"""Pages in and out of the pool in canonical form: what a session's snapshot keeps of the key/value cache.

The pages of a session follow one another in the order of positions, each [layer, key/value, head, position, element];
the last one has only the positions that were computed. So every position takes the same number of bytes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.cache_layout import CacheType, PageMemory
from magnitude_service.engine.cache_rows import RowShape, decode, encode
from magnitude_service.engine.program import CacheShape


class PageCopies(Protocol):
    """Copies single pages; the thread that runs steps calls it between them."""

    def token_bytes(self, cache_type: str = "") -> int:
        """Bytes of one position in all layers, in this cache type; "": the cache's own."""

    def export(self, page: int, tokens: int, target: NDArray[np.uint8], cache_type: str = "") -> None:
        """Writes a page's first `tokens` positions into `target`, u8 [tokens * token_bytes], in this cache type."""

    def load(self, page: int, tokens: int, source: NDArray[np.uint8], cache_type: str) -> None:
        """Fills a page's first `tokens` positions from what was exported, converted where `cache_type` is another."""


class CanonicalPages:
    """PageCopies of a real cache."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory

    def token_bytes(self, cache_type: str = "") -> int:
        """See PageCopies."""
        layout = self._memory.layout
        return token_bytes(layout.shape, CacheType[cache_type.upper()] if cache_type else layout.cache_type)

    def export(self, page: int, tokens: int, target: NDArray[np.uint8], cache_type: str = "") -> None:
        """See PageCopies."""
        layout = self._memory.layout
        exported = layout.export_page(self._memory.buffer, page, tokens)
        wanted = CacheType[cache_type.upper()] if cache_type else layout.cache_type
        if wanted is not layout.cache_type:
            exported = encode(decode(exported, layout.cache_type, layout.shape.head_size), wanted)
        target[:] = np.ascontiguousarray(exported).reshape(-1).view(np.uint8)

    def load(self, page: int, tokens: int, source: NDArray[np.uint8], cache_type: str) -> None:
        """See PageCopies. A value beyond the narrower type becomes infinite, and fails its own request only."""
        layout = self._memory.layout
        shape, found = layout.shape, CacheType[cache_type.upper()]
        saved = source.view(found.dtype).reshape(shape.layers, 2, shape.key_value_heads, tokens, -1)
        if found is not layout.cache_type:
            saved = encode(decode(saved, found, shape.head_size), layout.cache_type)
        layout.import_page(self._memory.buffer, page, saved)


def token_bytes(shape: CacheShape, cache_type: CacheType) -> int:
    """Bytes of one position of such a cache."""
    return shape.layers * 2 * shape.key_value_heads * RowShape(cache_type, shape.head_size).size_bytes


def row_bytes(cache_type: str, head_size: int) -> int:
    """Bytes of one head's keys or values at one position; 0 for a cache type that is not known."""
    known = {kind.name.lower(): kind for kind in CacheType}
    return RowShape(known[cache_type], head_size).size_bytes if cache_type in known else 0
