"""The measure of README.md: how far an executor is from the float32 run of a real model, beside llama.cpp's distance.

Shapes: T positions of a case; its vectors are [T, 32], natural-log probabilities of the 32 likeliest ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import StepPlan, StepResult
from magnitude_service.engine.sampling import log_softmax
from tests.support.steps import Part, page_tables, step_plan

FOLDER = Path(__file__).parent

SMOLLM2 = "smollm2-135m-instruct-q4_1"
GEMMA = "gemma-3-270m-q4_k_m"
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m"

AIM = 0.1
"""Of llama.cpp's own distance to the float32 run, what README.md aims at."""

GREEDY_TOKENS_MAX = 48
NEAR_TIE = 0.1
"""Greedy texts may part where the two best log-probabilities of the float32 run are closer than this."""

BUCKET_MIN = 1e-9
"""What all other ids hold, at least: below it the stored float32 numbers say nothing."""


class Executor(Protocol):
    """What is measured."""

    def logits(self, plan: StepPlan) -> NDArray[np.float32] | None: ...
    def step(self, plan: StepPlan) -> StepResult | None: ...


@dataclass(frozen=True)
class Case:
    """One prompt of a golden file."""

    ids: NDArray[np.int32]  # [T]
    greedy_llama_cpp: list[int]  # up to GREEDY_TOKENS_MAX ids; the last of fewer is an end token
    greedy_float32: list[int]
    top_ids: NDArray[np.int32]  # [T, 32]
    float32: NDArray[np.float32]  # [T, 32]
    llama_cpp: NDArray[np.float32]  # [T, 32]
    llama_cpp_first: float
    llama_cpp_after_first: float


@dataclass(frozen=True)
class Figures:
    """KL32 at the first position (mean of the cases) and after it (mean and 99th percentile of all positions)."""

    first: float
    after_first: float
    after_first_p99: float

    def times(self, factor: float) -> Figures:
        """All three, multiplied."""
        return Figures(self.first * factor, self.after_first * factor, self.after_first_p99 * factor)

    def exceeded(self, bar: Figures) -> list[str]:
        """Names of the figures that exceed the bar's."""
        return [
            name for name in ("first", "after_first", "after_first_p99") if getattr(self, name) > getattr(bar, name)
        ]


def read_cases(name: str) -> list[Case]:
    """The cases of a golden file."""
    stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return [
            Case(
                np.array(case["ids"], np.int32),
                case["greedy_llama_cpp"],
                case["greedy_float32"],
                arrays[f"top_ids_{index}"],
                arrays[f"logprob_float32_{index}"],
                arrays[f"logprob_llama_cpp_{index}"],
                case["kl32_llama_cpp_first"],
                case["kl32_llama_cpp_mean_after_first"],
            )
            for index, case in enumerate(stored)
        ]


def kl32(float32: NDArray[np.floating], ours: NDArray[np.floating]) -> NDArray[np.float64]:
    """Σ p·(ln p - ln q) over 32 ids and one bucket for all the rest. Shapes: both [T, 32] → [T]."""
    ln_p, ln_q = _with_bucket(float32.astype(np.float64)), _with_bucket(ours.astype(np.float64))
    divergence: NDArray[np.float64] = np.sum(np.exp(ln_p) * (ln_p - ln_q), axis=1)
    return divergence


def _with_bucket(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    rest = np.maximum(1.0 - np.exp(logprobs).sum(axis=1, keepdims=True), BUCKET_MIN)
    return np.concatenate([logprobs, np.log(rest)], axis=1)


def figures(divergences: Sequence[NDArray[np.float64]]) -> Figures:
    """Of the cases' KL32, [T] each."""
    after = np.concatenate([divergence[1:] for divergence in divergences])
    first = np.mean([divergence[0] for divergence in divergences])
    return Figures(float(first), float(after.mean()), float(np.percentile(after, 99)))


def bar_of(cases: Sequence[Case]) -> Figures:
    """llama.cpp's own figures as the golden file has them; the percentile of its vectors."""
    weights = [len(case.ids) - 1 for case in cases]
    return Figures(
        float(np.mean([case.llama_cpp_first for case in cases])),
        float(np.average([case.llama_cpp_after_first for case in cases], weights=weights)),
        figures([kl32(case.float32, case.llama_cpp) for case in cases]).after_first_p99,
    )


@dataclass(frozen=True)
class Measured:
    """An executor's KL32 figures, and its largest difference to the float32 run in one of the 32 log-probabilities."""

    figures: Figures
    difference: float


def measure(executor: Executor, cases: Sequence[Case]) -> Measured:
    """Computes all prompts in one step."""
    tables = page_tables([len(case.ids) for case in cases])
    parts = [Part(case.ids, 0, table) for case, table in zip(cases, tables, strict=True)]
    logits = executor.logits(step_plan(*parts))
    assert logits is not None
    divergences, differences, begin = [], [], 0
    for case in cases:
        logprobs = log_softmax(logits[begin : begin + len(case.ids)])
        ours = np.take_along_axis(logprobs, case.top_ids, axis=1)
        divergences.append(kl32(case.float32, ours))
        differences.append(float(np.abs(ours - case.float32).max()))
        begin += len(case.ids)
    return Measured(figures(divergences), max(differences))


def pages_needed(cases: Sequence[Case]) -> int:
    """Pages for all prompts with their greedy answers."""
    return sum(len(table) for table in page_tables([len(case.ids) + GREEDY_TOKENS_MAX for case in cases]))


def greedy_texts(executor: Executor, cases: Sequence[Case]) -> list[list[int]]:
    """GREEDY_TOKENS_MAX tokens after each prompt, all cases as one batch; an end token does not end it."""
    tables = page_tables([len(case.ids) + GREEDY_TOKENS_MAX for case in cases])
    parts = [Part(case.ids, 0, table) for case, table in zip(cases, tables, strict=True)]
    texts: list[list[int]] = [[] for _ in cases]
    for _ in range(GREEDY_TOKENS_MAX):
        result = executor.step(step_plan(*parts, all_rows=False))
        assert result is not None
        for text, token in zip(texts, result.token, strict=True):
            text.append(int(token))
        parts = [
            Part(text[-1:], part.position + len(part.tokens), part.pages)
            for text, part in zip(texts, parts, strict=True)
        ]
    return texts


def parting(text: Sequence[int], expected: Sequence[int]) -> int | None:
    """Index of the first token that differs from a golden greedy text; what follows its end token does not count."""
    return next((index for index, token in enumerate(expected) if text[index] != token), None)


def float32_gaps(float32: Executor, prefixes: Sequence[NDArray[np.int32]]) -> list[float]:
    """How far the two best log-probabilities of the float32 run are apart after each of these sequences."""
    if not prefixes:
        return []
    tables = page_tables([len(ids) for ids in prefixes])
    parts = [Part(ids, 0, table) for ids, table in zip(prefixes, tables, strict=True)]
    logits = float32.logits(step_plan(*parts, all_rows=False))
    assert logits is not None
    best = np.sort(logits, axis=1)
    return [float(gap) for gap in best[:, -1] - best[:, -2]]


def clear_partings(
    texts: Sequence[Sequence[int]], golden: Sequence[Sequence[int]], cases: Sequence[Case], float32: Executor
) -> dict[int, int]:
    """Case → index, where a text parts from the golden one although the float32 run sees no near-tie at that step."""
    found = {index: parting(*pair) for index, pair in enumerate(zip(texts, golden, strict=True))}
    partings = {index: at for index, at in found.items() if at is not None}
    prefixes = [np.append(cases[index].ids, texts[index][:at]).astype(np.int32) for index, at in partings.items()]
    gaps = float32_gaps(float32, prefixes)
    return {index: at for (index, at), gap in zip(partings.items(), gaps, strict=True) if gap >= NEAR_TIE}
