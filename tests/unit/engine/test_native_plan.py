"""A plan that names what does not exist is our own mistake: refused before anything is computed or written."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from magnitude_service.engine import architectures
from magnitude_service.engine.batch import StepPlan
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from tests.support.steps import PAGES, VOCABULARY, NanPool, Part, page_table, prompt, step_plan, tiny_model


def executor(**options: int) -> NativeExecutor:
    model = tiny_model("F32")
    program = architectures.record(model)
    return NativeExecutor(program, model, NanPool(program, CacheType.F16), NativeOptions(threads=1, **options))


def changed(field: str, value: object) -> StepPlan:
    """A sound plan of two sequences with one array replaced."""
    sound = step_plan(Part(prompt(3, seed=9), 0, page_table(3, 0)), Part(prompt(2, seed=9), 32, page_table(64, 1)))
    return dataclasses.replace(sound, **{field: value})


WRONG = {
    "a token lies outside the vocabulary": ("tokens", [0, 1, VOCABULARY, 3, 4]),
    "positions and tokens differ": ("positions", [0, 1, 2, 32]),
    "do not ascend by one": ("positions", [0, 1, 3, 32, 33]),
    "outside the context": ("positions", [0, 1, 2, 2047, 2048]),
    "a page table is too short": ("positions", [0, 1, 2, 64, 65]),
    "does not begin at 0": ("row_begin", [1, 3, 5]),
    "does not end at T": ("row_begin", [0, 3, 4]),
    "has no rows": ("row_begin", [0, 0, 5]),
    "differ in number": ("row_begin", [0, 5]),
    "a page lies outside the pool": ("page_tables", [[0, 0], [1, PAGES]]),
    "an output row lies outside the step": ("output_rows", [0, 1, 2, 3, 5]),
    "output rows do not ascend": ("output_rows", [0, 1, 2, 2, 3]),
    "samplers and output rows": ("output_rows", [0]),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_plan_that_names_what_does_not_exist_is_refused(message: str) -> None:
    field, value = WRONG[message]
    native = executor()
    with pytest.raises(AssertionError, match=message):
        native.step(changed(field, np.array(value, np.int32)))


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("a row's window", {"window_begin": 0, "window_end": 1}),
        ("a row's biases", {"bias_begin": 1, "bias_end": 0}),
        ("a row's mask", {"flags": 2}),
        ("a target", {"flags": 1, "target": VOCABULARY}),
        ("too many top", {"top_logprobs": 33}),
    ],
)
def test_a_row_that_samples_from_what_does_not_exist_is_refused(message: str, fields: dict[str, int]) -> None:
    native = executor()
    step = step_plan(Part(prompt(3, seed=9), 0, page_table(3, 0)))
    for field, value in fields.items():
        step.samplers[field] = value
    with pytest.raises(AssertionError, match=message):
        native.step(step)


def test_a_step_over_its_limits_is_refused() -> None:
    native = executor(rows_max=8, sequences_max=2)
    one = [Part(prompt(1, seed=i), 0, page_table(1, i)) for i in range(3)]
    with pytest.raises(AssertionError, match="too many sequences"):
        native.step(step_plan(*one))
    with pytest.raises(AssertionError, match="too many rows"):
        native.step(step_plan(Part(prompt(9, seed=1), 0, page_table(9, 0))))


def test_a_wrong_element_type_is_refused() -> None:
    native = executor()
    sound = changed("window", np.empty(0, np.int32))
    assert native.step(sound) is not None
    with pytest.raises(TypeError, match="incompatible function arguments"):
        native.step(changed("tokens", sound.tokens.astype(np.int64)))
