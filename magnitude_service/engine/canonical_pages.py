"""Pages in and out of the pool in canonical form: what a session's snapshot keeps of the key/value cache.

The pages of a session follow one another in the order of positions, each [layer, key/value, head, position, element];
the last one has only the positions that were computed. So every position takes the same number of bytes.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.cache_layout import CacheType, PageMemory
from magnitude_service.engine.cache_rows import BLOCK, RowShape, decode, encode
from magnitude_service.engine.program import CacheShape

F16_MAX = 65_504.0
VALUE_MAX = {
    CacheType.F32: 2.0**40,
    CacheType.F16: F16_MAX,
    CacheType.BF16: 2.0**40,
    CacheType.Q8_0: 128 * F16_MAX,
    CacheType.Q4_0: 8 * F16_MAX,
}
"""The largest magnitude that a page may hold. Of the wide types it is far more than any model computes, and little
enough that no sum over it leaves float32."""

WORDS_AT_ONCE = 1 << 18
"""What is looked at in one go stays in a core's own cache."""


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
        """See PageCopies. `problem_of` has found that every value has its place."""
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


def problem_of(content: NDArray[np.uint8], saved_type: str, cache_type: str) -> str:
    """Why exported pages of one cache type cannot be loaded into pages of another, or the same one; "" where they can.

    Pages come from outside: a value that is no number, or larger than any computed one, would make every logit of its
    session one that is no number.
    """
    largest, most = _largest(content, CacheType[saved_type.upper()]), VALUE_MAX[CacheType[cache_type.upper()]]
    if largest <= most:
        return ""
    found = f"{largest:,.0f}" if math.isfinite(largest) else "a value that is no finite number"
    return f"they hold {found}, and {cache_type} pages hold at most {most:,.0f}"


def _largest(content: NDArray[np.uint8], saved_type: CacheType) -> float:
    """The largest magnitude in exported pages; of blocks, what their scales allow; infinity for what is no number.

    Without its sign, the bits of a float are ordered as its magnitude is, and above those of infinity are all NaN.
    """
    row, factor = RowShape(saved_type, BLOCK), 1.0
    words = content.view(np.uint16)
    if row.blocks:
        words = content.reshape(-1, row.size_bytes)[:, :2].view(np.uint16).reshape(-1)
        factor = VALUE_MAX[saved_type] / F16_MAX
    value: NDArray[np.floating]
    if saved_type is CacheType.F32:
        value = np.array(_most(content.view(np.uint32), 0x7FFF_FFFF), np.uint32).view(np.float32)
    elif saved_type is CacheType.BF16:
        value = np.array(_most(words, 0x7FFF) << 16, np.uint32).view(np.float32)
    else:
        value = np.array(_most(words, 0x7FFF), np.uint16).view(np.float16)
    return float(value) * factor if np.isfinite(value) else math.inf


def _most(words: NDArray[np.unsignedinteger], mask: int) -> int:
    """The largest of some words, as far as a mask lets them be seen."""
    parts = (words[begin : begin + WORDS_AT_ONCE] for begin in range(0, words.size, WORDS_AT_ONCE))
    return max((int((part & mask).max()) for part in parts), default=0)
