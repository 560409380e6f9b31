"""A row of a real model depends on its own sequence alone: no company, chunk, thread or kernel changes a bit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine.architectures import record
from magnitude_service.engine.batch import StepPlan
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.kernels import supported_instruction_sets
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.golden.kl32 import SMOLLM2, read_cases
from tests.golden.tiny_models import tokens_of, write
from tests.support.steps import NanPool, Part, page_tables, step_plan

PROMPT_TOKENS = 70
"""Three pages, the last of them not full."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> MappedModel:
    return MMapModelLoader().load(smollm2_path)


@pytest.fixture(scope="module")
def prompts() -> list[NDArray[np.int32]]:
    cases = read_cases(SMOLLM2)
    return [cases[1].ids, cases[8].ids[:PROMPT_TOKENS], cases[6].ids]


def executor(
    model: MappedModel, cache_type: CacheType = CacheType.F32, *, threads: int = 2, isa: str = ""
) -> NativeExecutor:
    program = record(model)
    return NativeExecutor(
        program, model, NanPool(program, cache_type, pages=8), NativeOptions(threads=threads, isa=isa)
    )


def logits_in_chunks(native: NativeExecutor, ids: NDArray[np.int32], *cuts: int) -> NDArray[np.float32]:
    """Of every row of a prompt that is computed in steps which end at `cuts` and at its end."""
    (pages,) = page_tables([len(ids)])
    steps = [step_plan(Part(ids[a:b], a, pages)) for a, b in pairwise([0, *cuts, len(ids)])]
    return np.concatenate([logits_of(native, step) for step in steps])


def logits_of(native: NativeExecutor, step: StepPlan) -> NDArray[np.float32]:
    logits = native.logits(step)
    assert logits is not None
    return logits


@pytest.mark.parametrize("cache_type", CacheType)
def test_a_prompt_in_three_chunks_gives_the_bits_of_one(
    smollm2: MappedModel, prompts: list[NDArray[np.int32]], cache_type: CacheType
) -> None:
    whole = logits_in_chunks(executor(smollm2, cache_type), prompts[1])
    cut = logits_in_chunks(executor(smollm2, cache_type), prompts[1], 7, 40)
    assert whole.tobytes() == cut.tobytes()


def test_token_after_token_gives_the_bits_of_one_prompt(smollm2: MappedModel, prompts: list[NDArray[np.int32]]) -> None:
    whole = logits_in_chunks(executor(smollm2), prompts[0])
    single = logits_in_chunks(executor(smollm2), prompts[0], *range(1, len(prompts[0])))
    assert whole.tobytes() == single.tobytes()


def test_three_sequences_in_a_step_give_the_bits_of_each_alone(
    smollm2: MappedModel, prompts: list[NDArray[np.int32]]
) -> None:
    tables = page_tables([len(ids) for ids in prompts])
    parts = [Part(ids, 0, table) for ids, table in zip(prompts, tables, strict=True)]
    together = logits_of(executor(smollm2), step_plan(*parts))
    alone = [logits_in_chunks(executor(smollm2), ids) for ids in prompts]
    assert together.tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(
    smollm2: MappedModel, prompts: list[NDArray[np.int32]], threads: int
) -> None:
    two = logits_in_chunks(executor(smollm2), prompts[2])
    assert two.tobytes() == logits_in_chunks(executor(smollm2, threads=threads), prompts[2]).tobytes()


@pytest.mark.parametrize("isa", supported_instruction_sets())
def test_every_instruction_set_gives_the_same_bits(
    smollm2: MappedModel, prompts: list[NDArray[np.int32]], isa: str
) -> None:
    native = executor(smollm2, isa=isa)
    assert native.isa == isa
    best = logits_in_chunks(executor(smollm2), prompts[0][:4])
    assert best.tobytes() == logits_in_chunks(native, prompts[0][:4]).tobytes()


def test_bytes_after_the_last_tensor_change_no_bit(tmp_path: Path) -> None:
    path, tokens = write("llama", tmp_path), tokens_of("llama")
    bare = logits_in_chunks(executor(MMapModelLoader().load(path)), tokens)
    with path.open("ab") as file:
        file.write(b"a tail of any length" * 997)
    assert bare.tobytes() == logits_in_chunks(executor(MMapModelLoader().load(path)), tokens).tobytes()
