"""Real models: a tenth of llama.cpp's distance to the float32 run at most, and the same greedy text. README.md has the
measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine.batch import StepPlan
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.program import Op, Program
from tests.golden.kl32 import AIM, GEMMA, QWEN, SMOLLM2, bar_of, clear_partings, figures, kl32, parting, read_cases
from tests.golden.mutations import BIASED, EVERYWHERE, change, halve_heads, read_output
from tests.golden.real_model import RealModel

MUTATIONS: Mapping[str, Callable[[Program], Program]] = {
    **EVERYWHERE,
    "rope base": lambda program: change(
        program, Op.ROPE, base=lambda _: 10000.0
    ),  # the default, as if it were not read
    "epsilon": lambda program: change(program, Op.NORM, epsilon=lambda epsilon: 100 * float(epsilon)),
    "head grouping": halve_heads,
}
"""This bar is coarser than that of test_tiny.py, which sees a base that is a tenth lower, and ten times epsilon."""

LLAMA_CPP_STRAYS: Mapping[str, Mapping[int, int]] = {SMOLLM2: {2: 6, 6: 4}, QWEN: {}}
"""Case → step where llama.cpp, by its own error, leaves the float32 run's text although the gap is no near-tie (0.1003
and 0.19): whoever says there what float32 says parts from llama.cpp. README.md lists them."""


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> RealModel:
    return RealModel.open(smollm2_path, SMOLLM2)


@pytest.fixture(scope="module")
def qwen(qwen_path: Path) -> RealModel:
    return RealModel.open(qwen_path, QWEN)


def assert_a_tenth_of_llama_cpps(real: RealModel, kind: str) -> None:
    assert real.measured(kind).figures.exceeded(bar_of(real.cases).times(AIM)) == []


def assert_mutation_is_seen(real: RealModel, mutate: Callable[[Program], Program]) -> None:
    assert real.mutant(mutate(real.program)).figures.exceeded(bar_of(real.cases).times(AIM))


def assert_greedy_texts(real: RealModel, name: str, kind: str, cache_type: CacheType = CacheType.F32) -> None:
    texts, float32 = real.greedy(kind, cache_type), real.reference()
    assert clear_partings(texts, [case.greedy_float32 for case in real.cases], real.cases, float32) == {}
    clear = clear_partings(texts, [case.greedy_llama_cpp for case in real.cases], real.cases, float32)
    assert clear == LLAMA_CPP_STRAYS[name]


@pytest.mark.parametrize(
    ("name", "after_first", "p99"),
    [(SMOLLM2, "0.0019", "0.014"), (GEMMA, "0.0044", "0.058"), (QWEN, "0.0010", "0.009")],
)
def test_the_measure_gives_llama_cpps_figures_for_its_vectors(name: str, after_first: str, p99: str) -> None:
    cases = read_cases(name)
    measured, bar = figures([kl32(case.float32, case.llama_cpp) for case in cases]), bar_of(cases)
    assert measured.first == pytest.approx(bar.first, rel=1e-4)
    assert measured.after_first == pytest.approx(bar.after_first, rel=1e-4)
    assert (f"{measured.after_first:.4f}", f"{measured.after_first_p99:.3f}") == (after_first, p99)


class _Gap:
    """A float32 run whose two best logits are everywhere so far apart."""

    def __init__(self, gap: float) -> None:
        self.gap = gap

    def logits(self, plan: StepPlan) -> NDArray[np.float32]:
        return np.tile(np.array([3, 3 + self.gap, 1], np.float32), (len(plan.output_rows), 1))

    def step(self, plan: StepPlan) -> None: ...


@pytest.mark.parametrize(("gap", "clear"), [(0.09, {}), (0.11, {4: 9})])
def test_only_a_near_tie_excuses_a_parting(gap: float, clear: dict[int, int]) -> None:
    cases = read_cases(SMOLLM2)
    golden = [case.greedy_float32 for case in cases]
    texts = [[*text, *[0] * 48] for text in golden]  # what follows an end token does not count
    texts[4][9] += 1
    assert clear_partings(texts, golden, cases, _Gap(gap)) == clear


@pytest.mark.parametrize("name", [SMOLLM2, QWEN])
def test_llama_cpp_strays_where_the_golden_texts_part(name: str) -> None:
    partings = [parting(case.greedy_float32, case.greedy_llama_cpp) for case in read_cases(name)]
    assert {case: partings[case] for case in LLAMA_CPP_STRAYS[name]} == LLAMA_CPP_STRAYS[name]


@pytest.mark.model
@pytest.mark.parametrize("kind", ["native", "reference"])
def test_smollm2_is_within_a_tenth_of_llama_cpps_distance(smollm2: RealModel, kind: str) -> None:
    assert_a_tenth_of_llama_cpps(smollm2, kind)


@pytest.mark.model
@pytest.mark.parametrize("cache_type", [CacheType.F16, CacheType.BF16, CacheType.Q8_0])
def test_smollm2_with_rounded_pages_is_no_farther_than_llama_cpp(smollm2: RealModel, cache_type: CacheType) -> None:
    assert smollm2.measured("native", cache_type).figures.exceeded(bar_of(smollm2.cases)) == []


@pytest.mark.model
def test_the_reference_is_the_float32_run_of_smollm2(smollm2: RealModel) -> None:
    assert smollm2.measured("reference").difference <= 1e-4


@pytest.mark.model
@pytest.mark.parametrize("cache_type", [CacheType.F32, CacheType.F16])
def test_greedy_text_of_smollm2_is_llama_cpps_but_for_near_ties(smollm2: RealModel, cache_type: CacheType) -> None:
    assert_greedy_texts(smollm2, SMOLLM2, "native", cache_type)


@pytest.mark.model
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_one_wrong_attribute_of_smollm2_fails_the_bar(smollm2: RealModel, mutation: str) -> None:
    assert_mutation_is_seen(smollm2, MUTATIONS[mutation])


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_greedy_text_of_the_reference_on_smollm2_is_llama_cpps(smollm2: RealModel) -> None:
    assert_greedy_texts(smollm2, SMOLLM2, "reference")


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["native", "reference"])
def test_qwen_is_within_a_tenth_of_llama_cpps_distance(qwen: RealModel, kind: str) -> None:
    assert_a_tenth_of_llama_cpps(qwen, kind)


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_qwen_with_float16_pages_is_no_farther_than_llama_cpp(qwen: RealModel) -> None:
    assert qwen.measured("native", CacheType.F16).figures.exceeded(bar_of(qwen.cases)) == []


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cache_type", [CacheType.F32, CacheType.F16])
def test_greedy_text_of_qwen_is_llama_cpps_but_for_near_ties(qwen: RealModel, cache_type: CacheType) -> None:
    assert_greedy_texts(qwen, QWEN, "native", cache_type)


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", [*MUTATIONS, *BIASED, "output"])
def test_one_wrong_attribute_of_qwen_fails_the_bar(qwen: RealModel, mutation: str) -> None:
    tied = {"output": lambda program: read_output(program, "token_embd.weight")}
    assert_mutation_is_seen(qwen, {**MUTATIONS, **BIASED, **tied}[mutation])
