"""Pages in canonical form: what goes out comes back, in the cache's own type to the bit, in another rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.cache_layout import CacheLayout, CacheType
from magnitude_service.engine.cache_rows import decode
from magnitude_service.engine.canonical_pages import VALUE_MAX, CanonicalPages, problem_of, row_bytes, token_bytes
from magnitude_service.engine.program import CacheShape

SHAPE = CacheShape(3, 2, 64)
ELEMENTS = 3 * 2 * 2 * 64
TYPES = [kind.name.lower() for kind in CacheType]


class Memory:
    """Two pages of a cache."""

    def __init__(self, cache_type: str) -> None:
        self.layout = CacheLayout(SHAPE, CacheType[cache_type.upper()])
        self.pages_total = 2
        self.buffer = np.zeros(2 * self.layout.page_bytes, np.uint8)


def filled(cache_type: str, tokens: int) -> tuple[CanonicalPages, np.ndarray]:
    """Pages whose page 1 begins with random numbers, and those numbers, [.., D]."""
    dice = np.random.RandomState(tokens)
    numbers = dice.uniform(-2, 2, (3, 2, 2, tokens, 64)).astype(np.float32)
    pages = CanonicalPages(Memory(cache_type))
    pages.load(1, tokens, numbers.reshape(-1).view(np.uint8), "f32")
    return pages, numbers


def exported(pages: CanonicalPages, tokens: int, cache_type: str = "") -> np.ndarray:
    target = np.empty(tokens * pages.token_bytes(cache_type), np.uint8)
    pages.export(1, tokens, target, cache_type)
    return target


@pytest.mark.parametrize("tokens", [1, 31, PAGE_TOKENS])
@pytest.mark.parametrize("cache_type", TYPES)
def test_what_is_exported_and_loaded_again_is_the_same_to_the_bit(cache_type: str, tokens: int) -> None:
    pages, _ = filled(cache_type, tokens)
    content = exported(pages, tokens)
    other = CanonicalPages(Memory(cache_type))
    other.load(1, tokens, content, cache_type)
    assert (exported(other, tokens) == content).all()


@pytest.mark.parametrize(("cache_type", "tolerance"), [("f32", 0), ("f16", 1e-3), ("bf16", 8e-3), ("q8_0", 1e-2)])
def test_pages_are_saved_in_another_type_rounded_once(cache_type: str, tolerance: float) -> None:
    pages, numbers = filled("f32", 7)
    content = exported(pages, 7, cache_type)
    kind = CacheType[cache_type.upper()]
    found = decode(content.view(kind.dtype).reshape(3, 2, 2, 7, -1), kind, 64)
    assert np.abs(found - numbers).max() <= tolerance


@pytest.mark.parametrize("cache_type", TYPES)
def test_sizes_are_known_before_anything_is_copied(cache_type: str) -> None:
    pages = CanonicalPages(Memory("f16"))
    kind = CacheType[cache_type.upper()]
    assert pages.token_bytes(cache_type) == token_bytes(SHAPE, kind) == 12 * row_bytes(cache_type, 64)
    assert pages.token_bytes() == 2 * ELEMENTS


def test_a_cache_type_that_is_not_known_has_no_size() -> None:
    assert row_bytes("q3_k", 64) == 0


def content_with(value: float, cache_type: str) -> np.ndarray:
    """Exported pages, one value of which (of blocks: one scale) is `value`."""
    pages, _ = filled(cache_type, 31)
    content = exported(pages, 31)
    kind = CacheType[cache_type.upper()]
    if kind is CacheType.BF16:
        content.view(np.uint16)[-5] = np.array(value, np.float32).view(np.uint32) >> 16
    elif kind.dtype == np.uint8:
        content.reshape(-1, row_bytes(cache_type, 32))[-3, :2] = np.array([value], np.float16).view(np.uint8)
    else:
        content.view(kind.dtype)[-5] = value
    return content


@pytest.mark.parametrize("cache_type", TYPES)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_pages_with_what_is_no_number_cannot_be_loaded(cache_type: str, value: float) -> None:
    assert not problem_of(exported(filled(cache_type, 31)[0], 31), cache_type, cache_type)
    assert "no finite number" in problem_of(content_with(value, cache_type), cache_type, cache_type)


def test_pages_with_what_is_larger_than_the_cache_holds_cannot_be_loaded() -> None:
    assert VALUE_MAX[CacheType.F16] == np.finfo(np.float16).max
    assert not problem_of(content_with(-65_504, "f32"), "f32", "f16")
    assert (
        problem_of(content_with(-70_000, "f32"), "f32", "f16") == "they hold 70,000, and f16 pages hold at most 65,504"
    )
    assert not problem_of(content_with(-70_000, "f32"), "f32", "bf16")
    assert problem_of(content_with(1e30, "bf16"), "bf16", "bf16")
    assert problem_of(content_with(600, "q8_0"), "q8_0", "f16")
    assert not problem_of(content_with(500, "q8_0"), "q8_0", "f16")
    assert not problem_of(content_with(8_000, "q4_0"), "q4_0", "f16")
    assert not problem_of(np.empty(0, np.uint8), "f32", "f32")
