"""Sliding windows, soft caps and sinks in a Program: the native executor against the reference, and against itself.

No architecture records them yet: these programs are those of tiny models with other attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine import architectures
from magnitude_service.engine.batch import StepPlan
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.compilation import compile_program
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.engine.program import Attribute, Op, Program
from magnitude_service.engine.reference import ReferenceExecutor
from magnitude_service.kernels import supported_instruction_sets
from tests.support.steps import PAGES, NanPool, Part, page_table, prompt, step_plan, tiny_model

SINKS = "sinks.weight"
HEADS = 4

# Attributes by layer: the same in both, or one layer of each kind, as models alternate them.
Variant = tuple[Mapping[str, Attribute], Mapping[str, Attribute], bool]
VARIANTS: dict[str, Variant] = {
    "window": ({"window": 70}, {"window": 70}, False),
    "window of one": ({"window": 1}, {"window": 1}, False),
    "alternating windows": ({"window": 40}, {}, False),
    "soft cap": ({"softcap": 1.5}, {"softcap": 20.0}, False),
    "sinks": ({}, {}, True),
    "all": ({"window": 300, "softcap": 5.0}, {"window": 33, "softcap": 2.0}, True),
}


def model_with_sinks() -> Any:
    """The tiny model and one vector more, as if the file had it."""
    model = tiny_model("F32", "qwen2")
    sinks = np.linspace(-2, 3, HEADS).astype(np.float32).view(np.uint8)
    info = SimpleNamespace(type=SimpleNamespace(name="F32", id=0), row_bytes=sinks.nbytes)
    tensors = {**model.tensors, SINKS: SimpleNamespace(view=sinks, info=info)}
    return SimpleNamespace(tensors=tensors, check=model.check)


def program_of(variant: Variant) -> Program:
    program = architectures.record(tiny_model("F32", "qwen2"))
    first, second, has_sinks = variant
    instructions = [
        dataclasses.replace(
            instruction,
            attributes={**instruction.attributes, **(first if instruction.layer == 0 else second)},
            weights=(SINKS,) if has_sinks else (),
        )
        if instruction.op is Op.ATTENTION
        else instruction
        for instruction in program.instructions
    ]
    return dataclasses.replace(program, instructions=tuple(instructions))


def native_of(variant: Variant, cache_type: CacheType = CacheType.F32, **options: Any) -> NativeExecutor:
    program = program_of(variant)
    settings = NativeOptions(**{"threads": 2, "rows_max": 1024, **options})
    return NativeExecutor(program, model_with_sinks(), NanPool(program, cache_type), settings)


def reference_of(variant: Variant) -> ReferenceExecutor:
    program = program_of(variant)
    return ReferenceExecutor(program, model_with_sinks(), NanPool(program))


def logits_of(executor: NativeExecutor | ReferenceExecutor, *steps: StepPlan) -> NDArray[np.float32]:
    found = [executor.logits(step) for step in steps]
    return np.concatenate([logits for logits in found if logits is not None])


def chunked(executor: NativeExecutor, tokens: NDArray[np.int32], *chunks: int) -> NDArray[np.float32]:
    ends = np.cumsum(chunks)
    assert ends[-1] == len(tokens)
    pages = page_table(len(tokens), first=3)
    steps = [
        step_plan(Part(tokens[end - size : end], int(end) - size, pages))
        for size, end in zip(chunks, ends, strict=True)
    ]
    return logits_of(executor, *steps)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_agrees_with_the_reference(name: str) -> None:
    tokens, other = prompt(620, seed=1), prompt(90, seed=2)
    mine, others = page_table(620, first=0), page_table(90, first=30)
    steps = [
        step_plan(Part(tokens[:400], 0, mine), Part(other[:1], 0, others)),
        step_plan(Part(other[1:80], 1, others), Part(tokens[400:610], 400, mine)),
        *(step_plan(Part(tokens[610 + i : 611 + i], 610 + i, mine)) for i in range(3)),
        step_plan(Part(tokens[613:614], 613, mine), Part(other[80:81], 80, others)),
    ]
    actual, expected = logits_of(native_of(VARIANTS[name]), *steps), logits_of(reference_of(VARIANTS[name]), *steps)
    assert np.isfinite(expected).all()
    differences = (actual - expected) / expected.std()
    assert np.sqrt(np.mean(differences**2)) < 5e-6
    assert np.abs(differences).max() < 5e-5
    plain = logits_of(native_of(({}, {}, False)), *steps)
    assert np.sqrt(np.mean((plain - expected) ** 2)) / expected.std() > 1e-3, "the variant changes nothing"


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("cache_type", [CacheType.F16, CacheType.Q4_0])
def test_chunking_threads_and_instruction_sets_change_no_bit_of_a_variant(name: str, cache_type: CacheType) -> None:
    tokens, variant = prompt(330, seed=3), VARIANTS[name]
    expected = chunked(native_of(variant, cache_type, threads=1), tokens, 330)
    assert np.isfinite(expected).all()
    for chunks in ((329, 1), (100, 1, 1, 60, 168), (31, 33, 256, 10)):
        assert chunked(native_of(variant, cache_type), tokens, *chunks).tobytes() == expected.tobytes(), chunks
    for isa in supported_instruction_sets():
        native = native_of(variant, cache_type, isa=isa, threads=3)
        assert chunked(native, tokens[:120], 119, 1).tobytes() == expected[:120].tobytes(), isa


def test_pages_before_the_window_are_not_looked_at() -> None:
    native = native_of(VARIANTS["window"])
    tokens, pages = prompt(601, seed=4), page_table(601, first=0)
    logits_of(native, step_plan(Part(tokens[:600], 0, pages)))
    last = step_plan(Part(tokens[600:], 600, pages))
    expected = logits_of(native, last)
    forgotten = pages[: (601 - 70) // 32]
    native.cache.buffer.reshape(PAGES, -1)[forgotten] = 0xFF
    assert logits_of(native, last).tobytes() == expected.tobytes()
    native.cache.buffer.reshape(PAGES, -1)[pages[len(forgotten)]] = 0xFF
    assert not np.isfinite(logits_of(native, last)).all()


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [("window", 0, "shows nothing"), ("softcap", 0.0, "no bound"), ("softcap", -1.0, "no bound")],
)
def test_a_variant_without_a_meaning_is_refused(attribute: str, value: Attribute, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compile_program(program_of(({attribute: value}, {}, False)))
