"""Both samplers, the native one and its twin in NumPy: what filters mean, their edges, and where draws fall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine.batch import (
    PAGE_TOKENS,
    SAMPLER_ROW,
    TOP_LOGPROBS_MAX,
    RowFlag,
    RowStatus,
    StepPlan,
    StepResult,
)
from magnitude_service.engine.sampling import INCREMENT, SEEDS, choose, log_softmax, mix, uniform_draw
from magnitude_service.kernels import _kernels
from tests.support.steps import sampler_rows

INFINITY = float("inf")
DRAWS = {
    (0, 0): "0x1.4e0dba5e9a32fp-1",
    (0, 1): "0x1.6705460be8829p-1",
    (1, 0): "0x1.7906ac21d0e58p-2",
    (42, 7): "0x1.782d47a99890cp-1",
    (18446744073709551615, 18446744073709551615): "0x1.1140638c16042p-2",
    (1234567, 100000): "0x1.16ed8fcecd348p-4",
}
"""Seed and draw → the random number, in Python's exact notation. Made on 2026-11-29 by both implementations."""


class Sample(Protocol):
    """What a sampler chooses from rows of logits: [R, V], or [V] for every row."""

    def __call__(
        self,
        logits: NDArray[np.float32],
        rows: NDArray[np.void],
        *,
        window: Sequence[int] = ...,
        bias: Mapping[int, float] = ...,
        masks: NDArray[np.uint32] | None = ...,
    ) -> StepResult: ...


@pytest.fixture(params=["native", "reference"])
def sample(request: pytest.FixtureRequest) -> Sample:
    """Either sampler."""
    chooses = {"native": native_choose, "reference": choose}[request.param]

    def chosen(
        logits: NDArray[np.float32],
        rows: NDArray[np.void],
        *,
        window: Sequence[int] = (),
        bias: Mapping[int, float] = MappingProxyType({}),
        masks: NDArray[np.uint32] | None = None,
    ) -> StepResult:
        empty = np.empty(0, np.int32)
        plan = StepPlan(
            tokens=empty,
            positions=empty,
            row_begin=empty,
            page_tables=empty.reshape(0, 0),
            output_rows=np.arange(len(rows), dtype=np.int32),
            samplers=rows,
            window=np.array(window, np.int32),
            bias_ids=np.array(list(bias), np.int32),
            bias_values=np.array(list(bias.values()), np.float32),
            masks=np.empty((0, 0), np.uint32) if masks is None else masks,
        )
        return chooses(np.ascontiguousarray(np.broadcast_to(logits, (len(rows), logits.shape[-1]))), plan)

    return chosen


def native_choose(logits: NDArray[np.float32], plan: StepPlan) -> StepResult:
    """As `engine.sampling.choose`, in native code."""
    count = len(logits)
    top = int(plan.samplers["top_logprobs"].max())
    result = StepResult(
        np.empty(count, np.int32),
        np.empty(count, np.float32),
        np.empty(count, np.uint8),
        np.zeros((count, top), np.int32),
        np.zeros((count, top), np.float32),
    )
    _kernels.sample_rows(
        logits,
        plan.samplers.view(np.uint8),
        _kernels.PlanLists(plan.window, plan.bias_ids, plan.bias_values, plan.masks),
        result.token,
        result.logprob,
        result.status,
        result.top_ids,
        result.top_logprobs,
    )
    return result


def random_logits(size: int, seed: int = 1, scale: float = 3.0) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def mask_of(allowed: list[int], vocabulary: int) -> NDArray[np.uint32]:
    bits = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32).reshape(1, -1)


def test_rows_have_the_same_layout_in_both_languages() -> None:
    assert SAMPLER_ROW.names is not None
    assert SAMPLER_ROW.fields is not None
    expected = {name: SAMPLER_ROW.fields[name][1] for name in SAMPLER_ROW.names}
    assert _kernels.sampler_row_offsets() == {**expected, "itemsize": SAMPLER_ROW.itemsize}


def test_both_languages_have_the_same_constants() -> None:
    assert _kernels.PAGE_TOKENS == PAGE_TOKENS
    assert _kernels.TOP_LOGPROBS_MAX == TOP_LOGPROBS_MAX


def test_a_row_that_is_not_finite_fails_alone(sample: Sample) -> None:
    logits = np.stack([random_logits(500, seed) for seed in range(5)])
    logits[1, 77] = np.nan
    logits[2, 499] = INFINITY
    logits[3] = -INFINITY
    expected = [RowStatus.OK, RowStatus.NOT_FINITE, RowStatus.NOT_FINITE, RowStatus.NOT_FINITE, RowStatus.OK]
    for temperature in (0, 1):
        assert sample(logits, sampler_rows(5, temperature=temperature)).status.tolist() == expected


def test_some_logits_may_be_minus_infinity_and_are_never_chosen(sample: Sample) -> None:
    logits = np.full(100, -INFINITY, np.float32)
    logits[[3, 98]] = [1, 2]
    chosen = sample(logits, sampler_rows(200, top_logprobs=4))
    assert set(chosen.token.tolist()) == {3, 98}
    assert chosen.top_ids[0, :2].tolist() == [98, 3]
    assert chosen.top_logprobs[0, 2:].tolist() == [-INFINITY, -INFINITY]


@pytest.mark.parametrize("position", [0, 63, 64, 127, 499])
def test_temperature_zero_takes_the_largest_logit(sample: Sample, position: int) -> None:
    logits = random_logits(500)
    logits[position] = 100
    assert sample(logits, sampler_rows(1, temperature=0)).token[0] == position


def test_the_lowest_id_wins_a_tie(sample: Sample) -> None:
    logits = np.zeros(300, np.float32)
    logits[[70, 71, 290]] = 5
    assert sample(logits, sampler_rows(1, temperature=0)).token[0] == 70
    chosen = sample(logits, sampler_rows(100, top_k=2))
    assert set(chosen.token.tolist()) == {70, 71}


def test_extreme_temperatures_work(sample: Sample) -> None:
    logits = random_logits(64)
    cold = sample(logits, sampler_rows(50, temperature=1e-9))
    assert (cold.token == logits.argmax()).all()
    hot = sample(logits, sampler_rows(4000, temperature=1e38))
    assert np.bincount(hot.token, minlength=64).min() > 25  # of 62.5 expected, 5 standard deviations below
    assert (sample(logits, sampler_rows(50, temperature=1e-45)).token == logits.argmax()).all()


def test_draws_follow_the_distribution(sample: Sample) -> None:
    logits, count = random_logits(20, scale=1.0), 5000
    expected = count * np.exp(log_softmax(logits))
    observed = np.bincount(sample(logits, sampler_rows(count, seed=42)).token, minlength=20)
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < 43.8  # chi-square with 19 degrees of freedom: exceeded once in a thousand


def test_seed_and_draw_alone_decide(sample: Sample) -> None:
    logits = random_logits(1000)
    rows = sampler_rows(100, seed=7)
    first = sample(logits, rows)
    assert (sample(logits, rows[::-1].copy()).token[::-1] == first.token).all()
    rows["seed"] = 8
    assert (sample(logits, rows).token != first.token).any()


def test_logprobs_are_those_of_the_unmodified_logits(sample: Sample) -> None:
    logits = random_logits(700)
    expected = log_softmax(logits)
    fields = {"temperature": 0.3, "top_k": 5, "bias_end": 1, "top_logprobs": TOP_LOGPROBS_MAX}
    chosen = sample(logits, sampler_rows(20, **fields), bias={int(logits.argmin()): 100.0})
    assert (chosen.token == logits.argmin()).all()
    np.testing.assert_allclose(chosen.logprob, expected[chosen.token], rtol=0, atol=4e-6)
    order = np.argsort(-logits, kind="stable")[:TOP_LOGPROBS_MAX]
    assert (chosen.top_ids == order).all()
    np.testing.assert_allclose(chosen.top_logprobs[0], expected[order], rtol=0, atol=4e-6)


def test_a_scored_row_returns_its_target_and_chooses_nothing(sample: Sample) -> None:
    logits = random_logits(300)
    scored = sample(logits, sampler_rows(1, flags=RowFlag.SCORE, target=123, temperature=0, top_k=1))
    assert scored.token[0] == 123
    assert scored.logprob[0] == pytest.approx(log_softmax(logits)[123], abs=4e-6)


def test_only_masked_ids_are_chosen_and_none_is_an_answer(sample: Sample) -> None:
    logits, allowed = random_logits(211), [0, 31, 32, 210]
    rows = sampler_rows(300, flags=RowFlag.MASKED, top_k=40)
    chosen = sample(np.zeros(211, np.float32), rows, masks=mask_of(allowed, 211))
    assert set(chosen.token.tolist()) == set(allowed)
    for temperature in (0, 1):
        nothing = sampler_rows(1, flags=RowFlag.MASKED, temperature=temperature)
        assert sample(logits, nothing, masks=mask_of([], 211)).status[0] == RowStatus.NO_CANDIDATE


def test_a_bias_of_minus_infinity_removes_and_one_of_plus_infinity_decides(sample: Sample) -> None:
    logits = random_logits(50)
    best = int(logits.argmax())
    removed = sample(logits, sampler_rows(100, bias_end=1), bias={best: -INFINITY})
    assert best not in removed.token
    decided = sample(logits, sampler_rows(100, bias_end=1), bias={7: INFINITY})
    assert (decided.token == 7).all()
    everything = dict.fromkeys(range(50), -INFINITY)
    assert sample(logits, sampler_rows(1, bias_end=50), bias=everything).status[0] == RowStatus.NO_CANDIDATE


def test_penalties_count_each_id_of_the_window(sample: Sample) -> None:
    logits = np.array([2.0, 1.9, -1.0, 1.0], np.float32)
    window = [3, 0, 0]  # the row's slice begins at 1
    greedy = {"temperature": 0, "window_begin": 1, "window_end": 3}
    cases = [
        ({"repetition_penalty": 1.04}, 0),  # 2.0 / 1.04 = 1.923
        ({"repetition_penalty": 1.06}, 1),  # 1.887
        ({"presence_penalty": 0.09}, 0),
        ({"presence_penalty": 0.11}, 1),
        ({"frequency_penalty": 0.04}, 0),  # twice
        ({"frequency_penalty": 0.06}, 1),
        ({"presence_penalty": 0.03, "frequency_penalty": 0.04}, 1),
    ]
    for fields, expected in cases:
        assert sample(logits, sampler_rows(1, **greedy, **fields), window=window).token[0] == expected, fields


def test_a_repetition_penalty_moves_negative_logits_away_from_zero(sample: Sample) -> None:
    logits = np.array([-1.0, -1.1], np.float32)
    row = sampler_rows(1, temperature=0, window_end=1, repetition_penalty=1.2)
    assert sample(logits, row, window=[0]).token[0] == 1


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.62}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.3}, {0, 1}),  # 0.2 / 0.5 = 0.4, 0.1 / 0.5 = 0.2
        ({"min_p": 1.0}, {0}),
        ({"typical_p": 0.19}, {1}),  # entropy 1.39; -log p: 0.69, 1.61, 2.30, …
        ({"typical_p": 0.21}, {0, 1}),
        ({"typical_p": 0.71}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.62}, {0}),  # 0.5 of the 0.8 that are left is 0.625
        ({"top_k": 4, "min_p": 0.3, "top_p": 0.9}, {0, 1}),
    ],
)
def test_filters_keep_what_they_promise(sample: Sample, fields: dict[str, float], kept: set[int]) -> None:
    probabilities = np.array([0.5, 0.2, 0.1, 0.08, 0.07, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    assert set(sample(logits, sampler_rows(600, **fields)).token.tolist()) == kept


def test_mix_is_the_output_function_of_splitmix64() -> None:
    # The first outputs for the seeds 0 and 1234567 as they are published with the generator (Vigna, splitmix64.c).
    outputs = {
        0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
        1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431],
    }
    for seed, expected in outputs.items():
        assert [mix((seed + (i + 1) * INCREMENT) % SEEDS) for i in range(len(expected))] == expected


@pytest.mark.parametrize("draw_of", [uniform_draw, _kernels.uniform_draw])
def test_draws_are_these_numbers(draw_of: Callable[[int, int], float]) -> None:
    # Changing one of these breaks the promise that a seed gives the same answer in every version.
    assert [draw_of(*pair).hex() for pair in DRAWS] == list(DRAWS.values())
