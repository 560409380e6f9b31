"""The native executor and sampler against the reference ones, which are NumPy and say what is meant."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine import architectures
from magnitude_service.engine.batch import RowFlag, RowStatus, StepPlan
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.engine.reference import ReferenceExecutor
from magnitude_service.engine.sampling import choose, uniform_draw
from magnitude_service.kernels import _kernels, supported_instruction_sets
from tests.support.steps import NanPool, Part, page_table, prompt, sampler_rows, step_plan, tiny_model
from tests.support.tiny_models import TENSOR_TYPES

FLOAT_TYPES = ("F32", "F16", "BF16")


def executors(
    tensor_type: str, architecture: str, isa: str, cache_type: CacheType
) -> tuple[NativeExecutor, ReferenceExecutor]:
    model = tiny_model(tensor_type, architecture)
    program = architectures.record(model)
    native = NativeExecutor(program, model, NanPool(program, cache_type), NativeOptions(threads=2, isa=isa))
    return native, ReferenceExecutor(program, model, NanPool(program, cache_type))


def assert_agreement(
    native: NativeExecutor, reference: ReferenceExecutor, *steps: StepPlan, typical: float, largest: float
) -> None:
    """Bounds the differences of logits over some steps: root mean square, and largest, in deviations of the logits."""
    actual = np.concatenate([native.logits(step) for step in steps])
    expected = np.concatenate([reference.logits(step) for step in steps])
    differences = (actual - expected) / expected.std()
    assert np.sqrt(np.mean(differences**2)) < typical
    assert np.abs(differences).max() < largest


@pytest.mark.parametrize("isa", supported_instruction_sets())
@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES)
def test_logits_agree_with_the_reference(architecture: str, tensor_type: str, isa: str) -> None:
    native, reference = executors(tensor_type, architecture, isa, CacheType.F32)
    tokens, pages = prompt(41, seed=1), page_table(41, first=2)
    steps = [step_plan(Part(tokens[:40], 0, pages)), step_plan(Part(tokens[40:], 40, pages))]
    assert native.isa == isa
    # A product of random vectors is exact to 1e-7 with float weights, to 2e-5 with quantised ones, whose activations
    # are integers of 16 bits. The sharp attention of random weights makes ten times that of it, a hundred at the worst.
    if tensor_type in FLOAT_TYPES:
        assert_agreement(native, reference, *steps, typical=5e-6, largest=5e-5)
    else:
        assert_agreement(native, reference, *steps, typical=2.5e-4, largest=2e-3)


# A key that is rounded the other way is another key: both executors are right, and a little apart; with few bits such a
# key is rare and far off. What the rounding itself does is 0.001, 0.01, 0.03 and 0.4 deviations of the logits.
@pytest.mark.parametrize(
    ("cache_type", "typical", "largest"),
    [
        (CacheType.F32, 5e-6, 5e-5),
        (CacheType.F16, 2.5e-4, 2e-3),
        (CacheType.BF16, 1e-3, 3e-2),
        (CacheType.Q8_0, 1.5e-3, 5e-2),
        (CacheType.Q4_0, 1.5e-3, 0.15),
    ],
)
def test_a_mixed_batch_over_long_contexts_agrees_with_the_reference(
    cache_type: CacheType, typical: float, largest: float
) -> None:
    native, reference = executors("F32", "qwen2", "", cache_type)
    sizes = (300, 1, 65, 511)
    tables = [page_table(size + 2, first) for size, first in zip(sizes, (0, 10, 12, 16), strict=True)]
    texts = [prompt(size + 2, seed=size) for size in sizes]
    steps = [
        step_plan(*(Part(texts[i][: sizes[i]], 0, tables[i]) for i in (0, 1, 2))),
        step_plan(Part(texts[0][300:301], 300, tables[0]), Part(texts[3][:400], 0, tables[3])),
        step_plan(*(Part(texts[i][n : n + 1], n, tables[i]) for i, n in ((0, 301), (1, 1), (2, 65)))),
        step_plan(Part(texts[3][400:], 400, tables[3])),
    ]
    assert_agreement(native, reference, *steps, typical=typical, largest=largest)


def test_a_step_chooses_what_the_reference_chooses() -> None:
    native, reference = executors("F32", "llama", "", CacheType.F32)
    step = step_plan(Part(prompt(200, seed=3), 0, page_table(200, first=0)))
    fields = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 11, "top_logprobs": 3}
    step = dataclasses.replace(step, samplers=sampler_rows(200, **fields))
    actual, expected = native.step(step), reference.step(step)
    assert actual is not None
    assert expected is not None
    assert (actual.token == expected.token).all()
    assert (actual.status == expected.status).all()
    assert (actual.top_ids == expected.top_ids).all()
    np.testing.assert_allclose(actual.logprob, expected.logprob, rtol=0, atol=2e-4)
    np.testing.assert_allclose(actual.top_logprobs, expected.top_logprobs, rtol=0, atol=2e-4)


def random_sampling(random: np.random.Generator, vocabulary: int, count: int) -> tuple[NDArray[np.float32], StepPlan]:
    """Rows of logits of many shapes, with filters of every kind and in every combination."""
    scale = random.choice([0.1, 1, 3, 20], (count, 1))
    logits = (scale * random.standard_normal((count, vocabulary))).astype(np.float32)
    logits[random.random(count) < 0.2] = np.round(logits[random.random(count).argmin()])  # ties
    logits[random.random(logits.shape) < 0.01] = -np.inf
    rows = sampler_rows(count)
    rows["seed"] = random.integers(0, 1 << 64, count, np.uint64)
    rows["draw"] = random.integers(0, 1 << 40, count)

    def maybe(values: object, otherwise: float, share: float = 0.5) -> NDArray[np.float64]:
        return np.where(random.random(count) < share, values, otherwise)

    rows["temperature"] = maybe(random.choice([0, 1e-9, 0.1, 0.8, 2, 1e38], count), 1)
    rows["top_k"] = maybe(random.integers(1, 2 * vocabulary, count), 0)
    rows["top_p"] = maybe(random.random(count), 1)
    rows["min_p"] = maybe(random.random(count) ** 3, 0)
    rows["typical_p"] = maybe(random.random(count), 1, 0.3)
    rows["repetition_penalty"] = maybe(random.uniform(0.5, 2, count), 1)
    rows["presence_penalty"] = maybe(random.uniform(-2, 2, count), 0)
    rows["frequency_penalty"] = maybe(random.uniform(-2, 2, count), 0)
    rows["top_logprobs"] = maybe(random.integers(0, 33, count), 0)
    rows["target"] = random.integers(0, vocabulary, count)
    rows["flags"] = maybe(RowFlag.MASKED, 0, 0.2) + maybe(RowFlag.SCORE, 0, 0.1)
    rows["mask"] = random.integers(0, 4, count)
    rows["window_begin"], rows["window_end"] = np.sort(random.integers(0, 100, (2, count)), axis=0)
    rows["bias_begin"], rows["bias_end"] = np.sort(random.integers(0, 10, (2, count)), axis=0)
    empty = np.empty(0, np.int32)
    density = np.array([0, 0.01, 0.3, 0.9])[:, None]
    bits = (random.random((4, -(-vocabulary // 32) * 32)) < density).astype(np.uint8)
    return logits, StepPlan(
        tokens=empty,
        positions=empty,
        row_begin=empty,
        page_tables=empty.reshape(0, 0),
        output_rows=np.arange(count, dtype=np.int32),
        samplers=rows,
        window=random.integers(0, vocabulary, 100).astype(np.int32),
        bias_ids=random.integers(0, vocabulary, 10).astype(np.int32),
        bias_values=random.uniform(-5, 5, 10).astype(np.float32),
        masks=np.packbits(bits, axis=1, bitorder="little").view(np.uint32),
    )


@pytest.mark.parametrize(("vocabulary", "count"), [(1, 50), (33, 2000), (700, 2000), (5000, 500)])
def test_the_native_sampler_chooses_what_the_reference_chooses(vocabulary: int, count: int) -> None:
    logits, step = random_sampling(np.random.default_rng(vocabulary), vocabulary, count)
    expected = choose(logits, step)
    token, logprob = np.empty(count, np.int32), np.empty(count, np.float32)
    status = np.empty(count, np.uint8)
    top_ids, top_logprobs = np.zeros((count, 32), np.int32), np.zeros((count, 32), np.float32)
    lists = _kernels.PlanLists(step.window, step.bias_ids, step.bias_values, step.masks)
    _kernels.sample_rows(logits, step.samplers.view(np.uint8), lists, token, logprob, status, top_ids, top_logprobs)
    assert set(status.tolist()) >= {RowStatus.OK, RowStatus.NO_CANDIDATE}
    assert (status == expected.status).all()
    well = status == RowStatus.OK
    different = np.flatnonzero(well & (token != expected.token))
    assert not len(different), f"rows {different}: {step.samplers[different]}"
    np.testing.assert_allclose(logprob[well], expected.logprob[well], rtol=2e-6, atol=4e-6)
    for row in np.flatnonzero(well):
        top = step.samplers["top_logprobs"][row]
        assert (top_ids[row, :top] == expected.top_ids[row, :top]).all()
        np.testing.assert_allclose(top_logprobs[row, :top], expected.top_logprobs[row, :top], rtol=2e-6, atol=4e-6)


def test_both_draw_the_same_numbers() -> None:
    random = np.random.default_rng(5)
    pairs = [(0, 0), ((1 << 64) - 1, (1 << 64) - 1), *random.integers(0, 1 << 64, (1000, 2), np.uint64).tolist()]
    for seed, draw in pairs:
        assert _kernels.uniform_draw(seed, draw) == uniform_draw(seed, draw)
