"""What a model, a batch and a context cost is computed before it is spent, and refused where it does not fit."""

from __future__ import annotations

import dataclasses
import math

import pytest

from magnitude_service.allocator.machine import MemoryLimit
from magnitude_service.allocator.options import AllocatorOptions
from magnitude_service.allocator.resources import PROCESS_BYTES, ModelDemand, ModelResourceAllocator
from magnitude_service.engine.cache_layout import CacheLayout, CacheType
from magnitude_service.engine.program import CacheShape
from magnitude_service.errors import ConfigurationError, ExhaustedError

MIB = 1 << 20
LAYOUT = CacheLayout(CacheShape(layers=32, key_value_heads=8, head_size=64), CacheType.F16)
PAGE = LAYOUT.page_bytes
assert PAGE == 2 * MIB, "the figures below are worked out for pages of 2 MiB, which hold 32 tokens"
DEMAND = ModelDemand("tiny.gguf", 100 * MIB, 50 * MIB, context_tokens=2048, sequences_max=4, layout=LAYOUT)


def allocator(available_mib: int, **options: object) -> ModelResourceAllocator:
    settings = AllocatorOptions(**{"memory_fraction": 1.0, **options})
    return ModelResourceAllocator(MemoryLimit(available_mib * MIB, "the test's limit"), settings)


def test_with_plenty_of_memory_every_sequence_has_pages_for_a_whole_context() -> None:
    plan = allocator(10_000).plan(DEMAND)
    assert plan.pages_total == 4 * 2048 // 32
    assert plan.context_tokens == 2048
    assert plan.weights_fit


def test_the_cache_gets_what_process_scratch_and_weights_leave() -> None:
    plan = allocator(150 + 50 + 100 + 301).plan(DEMAND)
    assert plan.pages_total == 150
    assert plan.spent_bytes + plan.weights_bytes <= plan.budget_bytes


def test_a_share_of_free_memory_is_the_budget() -> None:
    assert allocator(1000, memory_fraction=0.5).budget_bytes == 500 * MIB


def test_a_context_nobody_asked_for_shrinks_to_what_fits() -> None:
    plan = allocator(150 + 50 + 100 + 81).plan(DEMAND)
    assert (plan.pages_total, plan.context_tokens) == (40, 1280)


def test_a_context_that_was_asked_for_is_kept_or_refused_with_every_number() -> None:
    kept = allocator(150 + 50 + 100 + 128, context_tokens=2048).plan(DEMAND)
    assert (kept.pages_total, kept.context_tokens, kept.weights_fit) == (64, 2048, True)
    with pytest.raises(ExhaustedError) as caught:
        allocator(150 + 50 + 127, context_tokens=2048).plan(DEMAND)
    message = str(caught.value)
    for number in (328 * MIB, 327 * MIB, PROCESS_BYTES, 50 * MIB, 128 * MIB, 2048):
        assert str(number) in message
    assert "the test's limit" in message
    assert "Use a smaller context" in message
    assert caught.value.reason == "MEMORY_EXHAUSTED"


def test_mapped_weights_larger_than_memory_leave_one_context_and_say_so() -> None:
    plan = allocator(400, context_tokens=1024).plan(dataclasses.replace(DEMAND, weights_bytes=5000 * MIB))
    assert not plan.weights_fit
    assert (plan.pages_total, plan.context_tokens) == (32, 1024)


def test_locked_weights_that_do_not_fit_are_refused() -> None:
    demand = dataclasses.replace(DEMAND, weights_bytes=5000 * MIB, weights_locked=True)
    with pytest.raises(ExhaustedError, match=f"{5000 * MIB} for locked weights"):
        allocator(400).plan(demand)


def test_a_context_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"context_tokens is 4096, but tiny.gguf was trained for 2048"
    ) as caught:
        allocator(10_000, context_tokens=4096).plan(DEMAND)
    assert caught.value.field == "context_tokens"


def test_a_budget_beyond_what_is_free_is_refused_by_both_numbers() -> None:
    with pytest.raises(ConfigurationError, match=f"budget_bytes is {2000 * MIB}, but only {1000 * MIB} bytes are free"):
        allocator(1000, budget_bytes=2000 * MIB)


def test_a_second_model_finds_what_the_first_left() -> None:
    shared = allocator(700)
    first = shared.plan(DEMAND)
    assert first.pages_total == 200
    cache, pool = shared.allocate(first)
    assert cache.buffer.size == first.cache_bytes
    assert pool.pages_total == 200
    with pytest.raises(ExhaustedError, match=f"{700 * MIB} for other models"):
        shared.plan(DEMAND)
    shared.release(first)
    assert shared.plan(DEMAND) == first


def test_the_process_is_paid_for_once() -> None:
    shared = allocator(150 + 2 * (50 + 100 + 512))
    first = shared.plan(DEMAND)
    shared.allocate(first)
    second = shared.plan(DEMAND)
    assert (first.process_bytes, second.process_bytes) == (PROCESS_BYTES, 0)
    assert first.pages_total == second.pages_total == 256


def test_planning_spends_nothing() -> None:
    shared = allocator(700)
    assert shared.plan(DEMAND) == shared.plan(DEMAND)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_fraction", 0.0),
        ("memory_fraction", 1.5),
        ("memory_fraction", math.nan),
        ("context_tokens", 0),
        ("cache_type", "q8"),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value!r}; it must") as caught:
        AllocatorOptions(**{name: value})
    assert caught.value.field == name


def test_cache_types_are_those_of_the_layout() -> None:
    [option] = [field for field in dataclasses.fields(AllocatorOptions) if field.name == "cache_type"]
    assert {name.upper() for name in option.metadata["choices"]} == set(CacheType.__members__)
