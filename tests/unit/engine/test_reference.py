"""The reference executor by itself: what it keeps of the executors' contract. Its numbers are compared elsewhere, with
the native executor's (test_native_reference) and with another implementation's (tests/golden)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine import architectures, reference
from magnitude_service.engine.batch import PAGE_TOKENS, StepPlan
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.reference import ReferenceExecutor
from magnitude_service.errors import IntegrityError, PreconditionError
from tests.support.steps import NanPool, Part, page_table, prompt, step_plan, tiny_model

TOLERANCE = 1e-4
"""NumPy adds up a row in another order when other rows stand beside it, and which one is its BLAS' choice for the
processor: 1.4e-5 was seen with AVX-512, 3.2e-5 with AVX2, of logits around 2.3. What a token says moves them by more
than a hundred times as much, which a test below holds."""


def executor(cache_type: CacheType = CacheType.F32, tensor_type: str = "F32") -> ReferenceExecutor:
    model = tiny_model(tensor_type, "qwen2")
    program = architectures.record(model)
    return ReferenceExecutor(program, model, NanPool(program, cache_type))


def logits_of(oracle: ReferenceExecutor, *steps: StepPlan) -> NDArray[np.float32]:
    found = [oracle.logits(step) for step in steps]
    assert all(logits is not None for logits in found)
    return np.concatenate(found)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunks", [[1, 69], [31, 1, 1, 37], [69, 1]])
def test_a_prompt_in_pieces_is_the_same_prompt(chunks: list[int]) -> None:
    tokens, steps, begin = prompt(70, seed=1), [], 0
    for size in chunks:
        steps.append(step_plan(Part(tokens[begin : begin + size], begin, page_table(70, first=9))))
        begin += size
    whole = logits_of(executor(), step_plan(Part(tokens, 0, page_table(70, first=2))))
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(logits_of(executor(), *steps), whole, rtol=0, atol=TOLERANCE)


def test_a_sequence_looks_at_its_own_pages_only() -> None:
    mine, other = prompt(40, seed=2), prompt(50, seed=3)
    alone = logits_of(executor(), step_plan(Part(mine, 0, page_table(40, first=0))))
    rows = [Part(other, 0, page_table(50, first=20)), Part(mine, 0, page_table(40, first=0))]
    np.testing.assert_allclose(logits_of(executor(), step_plan(*rows))[50:], alone, rtol=0, atol=TOLERANCE)


def test_a_token_changes_later_logits_and_no_earlier_one() -> None:
    tokens = prompt(40, seed=4)
    before = logits_of(executor(), step_plan(Part(tokens, 0, page_table(40, first=0))))
    tokens[25] = (tokens[25] + 1) % 300
    after = logits_of(executor(), step_plan(Part(tokens, 0, page_table(40, first=0))))
    np.testing.assert_allclose(after[:25], before[:25], rtol=0, atol=TOLERANCE)
    assert (np.abs(after[25:] - before[25:]).max(axis=1) > 100 * TOLERANCE).all()


def test_pages_hold_each_position_once_and_float16_rounds_it() -> None:
    tokens = prompt(45, seed=5)
    pages = page_table(45, first=6)
    wide, narrow = executor(CacheType.F32), executor(CacheType.F16)
    for oracle in (wide, narrow):
        logits_of(oracle, step_plan(Part(tokens, 0, pages)))
    for page, count in zip(pages, (PAGE_TOKENS, 13), strict=True):
        exact = wide.cache.layout.export_page(wide.cache.buffer, page, count)
        rounded = narrow.cache.layout.export_page(narrow.cache.buffer, page, count)
        assert (rounded[0] == exact[0].astype(np.float16)).all()  # layer 0 has seen no page yet: the same numbers
        assert np.isfinite(rounded).all()
    for oracle in (wide, narrow):
        at = tuple(index.reshape(-1) for index in np.indices((oracle.cache.pages_total, PAGE_TOKENS)))
        for rows in oracle.cache.layout.read_rows(oracle.cache.buffer, 1, at):
            slots = np.isfinite(rows).any(axis=(1, 2)).reshape(-1, PAGE_TOKENS)
            assert slots.sum() == len(tokens)
            assert slots[pages[0]].all()
            assert slots[pages[1], :13].all()


def test_float16_pages_change_the_logits_a_little() -> None:
    step = step_plan(Part(prompt(45, seed=5), 0, page_table(45, first=6)))
    difference = np.abs(logits_of(executor(CacheType.F16), step) - logits_of(executor(CacheType.F32), step)).max()
    assert TOLERANCE < difference < 1e-2


def test_only_the_rows_asked_for_get_logits() -> None:
    rows = Part(prompt(40, seed=6), 0, page_table(40, first=0))
    everything = logits_of(executor(), step_plan(rows))
    last = logits_of(executor(), step_plan(rows, all_rows=False))
    assert last.shape == (1, everything.shape[1])
    np.testing.assert_allclose(last[0], everything[-1], rtol=0, atol=TOLERANCE)


def test_greedy_steps_take_the_largest_logit() -> None:
    step = step_plan(Part(prompt(40, seed=7), 0, page_table(40, first=0)))
    chosen = executor().step(step)
    assert chosen is not None
    assert (chosen.token == logits_of(executor(), step).argmax(axis=1)).all()


def test_an_aborted_step_gives_nothing_and_the_next_one_is_whole() -> None:
    oracle, step = executor(), step_plan(Part(prompt(40, seed=8), 0, page_table(40, first=0)))
    expected = logits_of(oracle, step)
    oracle.abort()
    assert oracle.step(step) is None
    assert (logits_of(oracle, step) == expected).all()


def test_a_step_over_a_damaged_file_fails() -> None:
    oracle, step = executor(), step_plan(Part(prompt(4, seed=9), 0, page_table(4, first=0)))

    def check() -> None:
        raise IntegrityError("The file was truncated.")

    oracle.model = SimpleNamespace(tensors=oracle.model.tensors, check=check)
    with pytest.raises(IntegrityError, match="truncated"):
        oracle.step(step)


@pytest.mark.parametrize("kept_bytes", [0, 300_000])
def test_weights_that_are_not_kept_are_dequantised_again(monkeypatch: pytest.MonkeyPatch, kept_bytes: int) -> None:
    step = step_plan(Part(prompt(4, seed=10), 0, page_table(4, first=0)))
    expected = logits_of(executor(tensor_type="Q4_K"), step)
    monkeypatch.setattr(reference, "WEIGHTS_KEPT_BYTES", kept_bytes)
    oracle = executor(tensor_type="Q4_K")
    for _ in range(2):
        assert (logits_of(oracle, step) == expected).all()


def test_without_the_gguf_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(PreconditionError, match="needs the package gguf") as caught:
        executor()
    assert "pip install gguf" in caught.value.remedy
