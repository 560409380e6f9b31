"""Pages: who holds which, what is free, and when their memory is touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_service.allocator.pages import KeyValueCache, PagePool, pages_for
from magnitude_service.engine.cache_layout import CacheLayout, CacheType
from magnitude_service.engine.program import CacheShape
from magnitude_service.errors import ExhaustedError

LAYOUT = CacheLayout(CacheShape(layers=2, key_value_heads=3, head_size=8), CacheType.F16)


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, np.int32)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_a_page_begun_is_a_page_needed(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_a_pool_gives_each_page_once_and_then_none() -> None:
    pool = PagePool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted([*first.tolist(), *second.tolist()]) == [0, 1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert (pool.pages_used, pool.pages_free) == (5, 0)


def test_an_allocation_that_does_not_fit_takes_nothing() -> None:
    pool = PagePool(4)
    assert pool.allocate(5) is None
    assert pool.pages_free == 4


def test_no_pages_is_an_allocation_too() -> None:
    assert PagePool(1).allocate(0).size == 0


def test_freed_pages_come_back() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3)
    pool.free(pages[1:2])
    assert pool.allocate(1).tolist() == pages[1:2].tolist()


def test_the_first_pages_of_a_request_are_the_first_to_be_used_again() -> None:
    """The last ones were perhaps never written to, and cost no memory until they are."""
    pool = PagePool(8)
    held = pool.allocate(5)
    assert held is not None
    pool.free(held)
    again = pool.allocate(2)
    assert again is not None
    assert again.tolist() == held[:2].tolist()


def test_freeing_twice_is_noticed() -> None:
    pool = PagePool(3)
    pages = pool.allocate(2)
    pool.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(pages[:1])


def test_freeing_a_page_twice_in_one_call_is_noticed() -> None:
    pool = PagePool(3)
    pool.allocate(3)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(ids(1, 1))


def test_a_shared_page_is_free_only_when_each_holder_has_freed_it() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2)
    pool.share(pages[:1])
    pool.free(pages)
    assert pool.pages_used == 1
    pool.free(pages[:1])
    assert pool.pages_used == 0


def test_a_free_page_cannot_be_shared() -> None:
    with pytest.raises(AssertionError, match="cannot be shared"):
        PagePool(2).share(ids(0))


@given(st.integers(1, 20), st.lists(st.tuples(st.sampled_from(["allocate", "share", "free"]), st.integers(0, 7))))
def test_any_order_of_calls_keeps_count_of_holders(total: int, calls: list[tuple[str, int]]) -> None:
    pool, held = PagePool(total), []
    for name, number in calls:
        if name == "allocate":
            pages = pool.allocate(number)
            assert (pages is None) == (number > total - len({p for group in held for p in group.tolist()}))
            if pages is not None:
                assert not {p for group in held for p in group.tolist()} & set(pages.tolist())
                held.append(pages)
        elif held and name == "share":
            pool.share(held[number % len(held)])
            held.append(held[number % len(held)])
        elif held:
            pool.free(held.pop(number % len(held)))
        assert pool.pages_used == len({p for group in held for p in group.tolist()})
        assert pool.pages_used + pool.pages_free == total


def test_cache_memory_is_zero_writable_and_unspent_until_used() -> None:
    before = resident_bytes()
    cache = KeyValueCache(LAYOUT, (256 << 20) // LAYOUT.page_bytes)
    assert cache.buffer.size == cache.pages_total * LAYOUT.page_bytes
    assert cache.buffer.flags.writeable
    assert resident_bytes() - before < 16 << 20
    cache.buffer[-1] = 7
    assert cache.buffer[0] == 0
    assert cache.buffer[-1] == 7


def test_cache_memory_that_the_system_refuses_is_a_typed_error() -> None:
    layout = CacheLayout(CacheShape(layers=1000, key_value_heads=1000, head_size=1 << 20), CacheType.F32)
    with pytest.raises(ExhaustedError, match=r"mmap refused .* bytes for 2000000 key/value pages") as caught:
        KeyValueCache(layout, 2_000_000)
    assert caught.value.reason == "KV_CACHE_EXHAUSTED"
    assert caught.value.remedy


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
