"""The key/value cache's memory, and who holds which page of it."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.cache_layout import CacheLayout
from magnitude_service.errors import ExhaustedError

PAGES_MAX = 2**31 - 1
"""Page ids are i32 in a StepPlan."""


def pages_for(tokens: int) -> int:
    """How many pages hold `tokens` tokens of one sequence."""
    return (tokens + PAGE_TOKENS - 1) // PAGE_TOKENS


class PagePool:
    """Which pages are free, and how many holders each other one has. One thread owns it.

    Costs are per page asked for, whatever the size of the pool: the free ids are a stack.
    """

    def __init__(self, pages_total: int) -> None:
        assert 0 < pages_total <= PAGES_MAX, f"a pool has 1 to {PAGES_MAX} pages, not {pages_total}"
        self.pages_total = pages_total
        self._free = np.arange(pages_total - 1, -1, -1, dtype=np.int32)  # the top is the end: page 0 goes first
        self._free_count = pages_total
        self._holders = np.zeros(pages_total, np.uint32)

    @property
    def pages_free(self) -> int:
        """Pages that `allocate` can still give."""
        return self._free_count

    @property
    def pages_used(self) -> int:
        """Pages with at least one holder."""
        return self.pages_total - self._free_count

    def allocate(self, count: int) -> NDArray[np.int32] | None:
        """`count` pages with one holder each, or None and no change when fewer are free."""
        assert count >= 0, f"{count} pages were asked for"
        if count > self._free_count:
            return None
        ids = self._free[self._free_count - count : self._free_count][::-1].copy()
        self._free_count -= count
        self._holders[ids] = 1
        return ids

    def share(self, ids: NDArray[np.int32]) -> None:
        """One more holder for each of these pages, none of which may be free."""
        assert self._are_held(ids), "a free page cannot be shared"
        self._holders[ids] += 1

    def free(self, ids: NDArray[np.int32]) -> None:
        """One holder fewer for each of these pages; those without any can be allocated again."""
        assert self._are_held(ids), "a page was freed twice"
        self._holders[ids] -= 1
        unheld = ids[self._holders[ids] == 0]
        # The first ones on top: they were written to, the last ones perhaps never, and need no memory until they are.
        self._free[self._free_count : self._free_count + unheld.size] = unheld[::-1]
        self._free_count += unheld.size

    def _are_held(self, ids: NDArray[np.int32]) -> bool:
        """Whether each id is held, and none occurs twice."""
        return bool((self._holders[ids] > 0).all()) and np.unique(ids).size == ids.size


class KeyValueCache:
    """The memory of all pages: anonymous, private, all zero, and not spent before a page is first written.

    Lifetime: the mapping lives as long as this object or any view of `buffer`.
    """

    def __init__(self, layout: CacheLayout, pages_total: int) -> None:
        self.layout = layout
        self.pages_total = pages_total
        size_bytes = layout.page_bytes * pages_total
        try:
            mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise ExhaustedError(
                f"mmap refused {size_bytes} bytes for {pages_total} key/value pages of {layout.page_bytes} bytes: "
                f"{error}.",
                remedy="Use a smaller context, fewer sequences or a smaller cache type; "
                "or raise the address space limit (ulimit -v).",
                reason="KV_CACHE_EXHAUSTED",
                bytes=size_bytes,
            ) from error
        self.buffer: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        """Shapes: u8 [pages_total * page_bytes], writable, aligned to the system's memory page."""
