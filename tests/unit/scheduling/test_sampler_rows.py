"""What a request asks of sampling, as rows for native code."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from magnitude_service.engine.batch import SAMPLER_ROW, RowFlag
from magnitude_service.scheduling.sampler_rows import SamplerTemplate, derive_seed

SPLITMIX64_OF_1234567 = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
"""The generator's first outputs, as published with its reference code (https://prng.di.unimi.it/splitmix64.c)."""


def test_choice_zero_has_the_seed_itself_and_others_splitmix64() -> None:
    assert derive_seed(1234567, 0) == 1234567
    assert [derive_seed(1234567, choice) for choice in range(1, 5)] == SPLITMIX64_OF_1234567


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_choices_of_one_seed_all_differ(seed: int) -> None:
    seeds = [derive_seed(seed, choice) for choice in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= derived < 2**64 for derived in seeds)


def test_every_sampling_parameter_reaches_the_row(request_of) -> None:
    values = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "min_p": 0.125,
        "typical_p": 0.75,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 2.0,
    }
    request = request_of(**values, seed=2**64 - 1, top_logprobs=5)
    row = SamplerTemplate(request, 97).for_choice(request.sampling.seed, 0)
    assert row.dtype == SAMPLER_ROW
    assert {name: row[name].item() for name in values} == values
    assert (row["seed"], row["top_logprobs"], row["flags"]) == (2**64 - 1, 5, RowFlag.SAMPLE)
    covered = {*values, "seed", "penalty_window", "logit_bias", "allowed_token_ids"}
    assert {field.name for field in dataclasses.fields(request.sampling)} == covered


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 97])
def test_a_mask_has_one_bit_per_id_lowest_first(request_of, vocabulary: int) -> None:
    allowed = frozenset({0, vocabulary - 1, vocabulary // 2})
    mask = SamplerTemplate(request_of(allowed_token_ids=allowed), vocabulary).mask
    assert mask.dtype == np.uint32
    assert mask.size == (vocabulary + 31) // 32
    bits = {token for token in range(mask.size * 32) if int(mask[token // 32]) >> (token % 32) & 1}
    assert bits == allowed


def test_an_empty_set_of_allowed_tokens_allows_none(request_of) -> None:
    template = SamplerTemplate(request_of(allowed_token_ids=frozenset()), 40)
    assert template.mask.tolist() == [0, 0]
    assert template.sample["flags"] == RowFlag.MASKED


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -1}])
def test_any_penalty_asks_for_a_window(request_of, penalty) -> None:
    assert SamplerTemplate(request_of(**penalty, penalty_window=9), 97).window_tokens == 9
    assert SamplerTemplate(request_of(penalty_window=9), 97).window_tokens == 0
