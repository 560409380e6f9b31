"""How a token is chosen from a row of logits: the meaning of every filter, in NumPy. `kernels/csrc/sampler.cpp` is the
same in native code, and is tested against this file.

Order and meaning follow llama.cpp's default chain:

    1  a NaN, a +inf, or no finite logit: NOT_FINITE. Log-probabilities are taken here, of the unmodified logits
    2  logit biases are added; an id that the mask leaves out, or that ends at -inf, is no candidate
    3  penalties, once for each distinct id of the window: `repetition_penalty` divides a positive logit and multiplies
       another one; then count · `frequency_penalty` + `presence_penalty` is subtracted
    4  temperature 0: the largest logit. Done
    5  top_k       the k largest
    6  typical_p   those whose surprise -ln p is nearest to the entropy, until they hold more than `typical_p`
    7  top_p       the largest, until they hold at least `top_p`
    8  min_p       those at least `min_p` times as likely as the likeliest
    9  p = softmax(logit / temperature); the draw u walks the candidates in order of id, and takes the first whose
       cumulative probability exceeds it

"Largest" means the larger logit, then the lower id; of equally near surprises the larger goes first. Each filter keeps
at least one candidate. Steps 2 and 3 are float32; from 6 on, probabilities are float64 and those among the candidates
that are left. Two implementations that round elsewhere differ only where a limit or a draw falls within 1e-12 of a
boundary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import RowFlag, RowStatus, StepPlan, StepResult

INCREMENT = 0x9E3779B97F4A7C15
SEEDS = 2**64
"""Seeds, and the words that are made of them, lie below."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How a token is chosen from logits; `engine.batch.SAMPLER_ROW` says which values switch a filter off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    penalty_window: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: frozenset[int] | None = None


def uniform_draw(seed: int, draw: int) -> float:
    """The random number in [0, 1) of a pair of u64: a hash, so that the pair is all the state there is.

    u = the upper 53 bits of mix(mix(seed + g) + (draw + 1)·g), divided by 2⁵³; integers modulo 2⁶⁴; g is INCREMENT.

    Source: the output function and the increment of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
    Number Generators, OOPSLA 2014), as a counter-based generator: the seed selects the stream, the draw its place.
    """
    stream = mix((seed + INCREMENT) % SEEDS)
    bits = mix((stream + (draw + 1) * INCREMENT) % SEEDS)
    return (bits >> 11) * 2.0**-53


def mix(word: int) -> int:
    """SplitMix64's output function: a bijection of u64 that scatters neighbouring numbers."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % SEEDS
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % SEEDS
    return word ^ (word >> 31)


def choose(logits: NDArray[np.float32], plan: StepPlan) -> StepResult:
    """What a step chooses from the logits [R, V] of its output rows."""
    rows = [_choose_row(row, sampler, plan) for row, sampler in zip(logits, plan.samplers, strict=True)]
    top = int(plan.samplers["top_logprobs"].max()) if rows else 0
    result = StepResult(
        token=np.array([row.token for row in rows], np.int32),
        logprob=np.array([row.logprob for row in rows], np.float32),
        status=np.array([row.status for row in rows], np.uint8),
        top_ids=np.zeros((len(rows), top), np.int32),
        top_logprobs=np.zeros((len(rows), top), np.float32),
    )
    for index, row in enumerate(rows):
        result.top_ids[index, : len(row.top_ids)] = row.top_ids
        result.top_logprobs[index, : len(row.top_ids)] = row.top_logprobs
    return result


@dataclass(frozen=True, slots=True)
class _Choice:
    """One row's part of a StepResult."""

    status: RowStatus
    token: int
    logprob: float
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float64]


def _choose_row(logits: NDArray[np.float32], row: np.void, plan: StepPlan) -> _Choice:
    if np.isnan(logits).any() or np.isposinf(logits).any() or not np.isfinite(logits).any():
        return _Choice(RowStatus.NOT_FINITE, 0, -math.inf, np.empty(0, np.int64), np.empty(0))
    logprobs = log_softmax(logits)
    top_ids, top_logprobs = _likeliest(logits, logprobs, int(row["top_logprobs"]))
    if row["flags"] & RowFlag.SCORE:
        token = int(row["target"])
    else:
        adjusted = _adjust(logits, row, plan)
        candidates = _largest_first(adjusted, np.flatnonzero(adjusted > -np.inf))
        if len(candidates) == 0:
            return _Choice(RowStatus.NO_CANDIDATE, 0, -math.inf, top_ids, top_logprobs)
        greedy = row["temperature"] <= 0
        token = int(candidates[0]) if greedy else _draw(adjusted, _filter(adjusted, candidates, row), row)
    return _Choice(RowStatus.OK, token, float(logprobs[token]), top_ids, top_logprobs)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural-log probabilities over the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore", under="ignore"):
        shifted: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return shifted


def _likeliest(
    logits: NDArray[np.float32], logprobs: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` likeliest ids; where fewer have a finite logit, the rest is id 0 at -inf."""
    found = _largest_first(logits, np.flatnonzero(logits > -np.inf))[:count]
    ids, values = np.zeros(count, np.int64), np.full(count, -np.inf)
    ids[: len(found)], values[: len(found)] = found, logprobs[found]
    return ids, values


def _adjust(logits: NDArray[np.float32], row: np.void, plan: StepPlan) -> NDArray[np.float32]:
    """Steps 2 and 3. A sum beyond float32 stays its largest number, one that is no number removes the id."""
    adjusted = logits.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for index in range(row["bias_begin"], row["bias_end"]):
            token = plan.bias_ids[index]
            adjusted[token] = _bounded(adjusted[token] + plan.bias_values[index])
        if row["flags"] & RowFlag.MASKED:
            bits = np.unpackbits(plan.masks[row["mask"]].astype("<u4").view(np.uint8), bitorder="little")
            adjusted[bits[: len(adjusted)] == 0] = -np.inf
        window = plan.window[row["window_begin"] : row["window_end"]]
        for token, count in zip(*np.unique(window, return_counts=True), strict=True):
            logit, penalty = adjusted[token], row["repetition_penalty"]
            logit = logit / penalty if logit > 0 else logit * penalty
            adjusted[token] = _bounded(logit - (np.float32(count) * row["frequency_penalty"] + row["presence_penalty"]))
    return adjusted


def _bounded(logit: np.float32) -> np.float32:
    return np.float32(-np.inf) if np.isnan(logit) else np.minimum(logit, np.finfo(np.float32).max)


def _filter(adjusted: NDArray[np.float32], candidates: NDArray[np.int64], row: np.void) -> NDArray[np.int64]:
    """Steps 5 to 8, on candidates that come, and stay, largest first."""
    if row["top_k"] > 0:
        candidates = candidates[: row["top_k"]]
    if row["typical_p"] < 1:
        candidates = _keep_typical(adjusted, candidates, float(row["typical_p"]))
    if row["top_p"] < 1:
        cumulative = np.cumsum(_probabilities(adjusted[candidates]))
        candidates = candidates[: 1 + np.searchsorted(cumulative, float(row["top_p"]), side="left")]
    if row["min_p"] > 0:
        logits = adjusted[candidates].astype(np.float64)
        kept = (logits >= logits[0] + math.log(row["min_p"])) | (logits == logits[0])
        candidates = candidates[kept]
    return candidates


def _keep_typical(adjusted: NDArray[np.float32], candidates: NDArray[np.int64], mass: float) -> NDArray[np.int64]:
    p = _probabilities(adjusted[candidates])
    with np.errstate(divide="ignore", under="ignore"):
        surprise = -log_softmax(adjusted[candidates])
    entropy = float(np.sum(p[p > 0] * surprise[p > 0]))
    nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = 1 + int(np.searchsorted(np.cumsum(p[nearest]), mass, side="right"))
    return candidates[np.sort(nearest[:count])]


def _draw(adjusted: NDArray[np.float32], candidates: NDArray[np.int64], row: np.void) -> int:
    """Step 9."""
    ids = np.sort(candidates)
    p = _probabilities(adjusted[ids], float(row["temperature"]))
    ids, p = ids[p > 0], p[p > 0]
    index = int(np.searchsorted(np.cumsum(p), uniform_draw(int(row["seed"]), int(row["draw"])), side="right"))
    return int(ids[min(index, len(ids) - 1)])


def _probabilities(logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
        normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def _largest_first(logits: NDArray[np.float32], ids: NDArray[np.intp]) -> NDArray[np.int64]:
    """Ascending ids put in order: the larger logit first, then the lower id."""
    return ids[np.argsort(-logits[ids], kind="stable")].astype(np.int64)
