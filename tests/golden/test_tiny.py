"""On float32 weights we say what llama.cpp says, to 1e-4 in every log-probability; tiny/README.md has the origin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine.architectures import record
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.engine.program import Op, Program
from magnitude_service.engine.reference import ReferenceExecutor
from magnitude_service.engine.sampling import log_softmax
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.golden.mutations import BIASED, EVERYWHERE, drop_weights, read_output, rotate_less
from tests.golden.tiny_models import MODELS, TOKEN_COUNT, VECTORS, sha256, tokens_of, write
from tests.support.steps import NanPool, Part, page_tables, step_plan

TOLERANCE = 1e-4
EXECUTORS = ("reference", "native")

MUTATIONS: dict[tuple[str, str], Callable[[Program], Program]] = {
    **{(name, mutation): mutate for name in MODELS for mutation, mutate in EVERYWHERE.items()},
    **{(name, "rope dimensions"): rotate_less for name in ("llama", "qwen2")},  # frequency factors fix their number
    **{
        (name, "output"): lambda program: read_output(program, "token_embd.weight")
        for name in ("llama-variant", "qwen2")
    },
    **{("qwen2", mutation): mutate for mutation, mutate in BIASED.items()},
    **{("llama-variant", mutation): mutate for mutation, mutate in BIASED.items()},
    ("llama-variant", "frequency factors"): lambda program: drop_weights(program, Op.ROPE, lambda _: True),
}


@cache
def vectors(name: str) -> dict[str, NDArray[Any]]:
    with np.load(VECTORS / f"{name}.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MappedModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return {name: MMapModelLoader().load(write(name, folder)) for name in MODELS}


def distance(program: Program, model: MappedModel, name: str, executor: str = "reference") -> float:
    """The largest difference to llama.cpp in a log-probability of any id at any position."""
    pages = NanPool(program, pages=2)
    if executor == "reference":
        logits = ReferenceExecutor(program, model, pages).logits
    else:
        logits = NativeExecutor(program, model, pages, NativeOptions(threads=2)).logits
    ours = logits(step_plan(Part(tokens_of(name), 0, page_tables([TOKEN_COUNT])[0])))
    assert ours is not None
    return float(np.abs(log_softmax(ours) - vectors(name)["logprobs"]).max())


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_makes_the_model_that_was_evaluated(name: str, tmp_path: Path) -> None:
    assert sha256(write(name, tmp_path)) == vectors(name)["sha256"].tobytes().hex()
    assert tokens_of(name).tolist() == vectors(name)["tokens"].tolist()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_llama_cpps(name: str, executor: str, models: dict[str, MappedModel]) -> None:
    assert distance(record(models[name]), models[name], name, executor) <= TOLERANCE


@pytest.mark.parametrize(("name", "mutation"), [pytest.param(*key, id="-".join(key)) for key in MUTATIONS])
def test_one_wrong_attribute_is_seen(name: str, mutation: str, models: dict[str, MappedModel]) -> None:
    mutated = MUTATIONS[name, mutation](record(models[name]))
    assert distance(mutated, models[name], name) > 10 * TOLERANCE
