"""What of a request's sampling stays the same from row to row: built once, copied into every StepPlan."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import SAMPLER_ROW, RowFlag
from magnitude_service.engine.sampling import INCREMENT, SEEDS, mix
from magnitude_service.scheduling.request import Request


def derive_seed(seed: int, choice: int) -> int:
    """The seed of one of several answers: choice 0 has the request's own, each other one a different one.

    Choice c > 0 has the c-th output of SplitMix64 started at `seed`. That generator is a bijection of a counter, so
    that two choices of one request never share a seed, and the same request gives the same answers again.

    Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    if choice == 0:
        return seed
    return mix((seed + choice * INCREMENT) % SEEDS)


class SamplerTemplate:
    """One request's part of sampler rows, biases and masks; `choices` differ by their seeds alone."""

    __slots__ = ("bias", "early_bias", "mask", "sample", "score", "window_tokens")

    def __init__(self, request: Request, vocabulary_size: int) -> None:
        sampling, stopping = request.sampling, request.stopping
        masked = sampling.allowed_token_ids is not None
        self.sample = _sample_row(request, RowFlag.MASKED if masked else RowFlag.SAMPLE)
        self.score = np.zeros((), SAMPLER_ROW)
        self.score["flags"], self.score["top_logprobs"] = RowFlag.SCORE, request.top_logprobs
        self.window_tokens = sampling.penalty_window if _penalises(request) else 0
        """Tokens that penalties look back on; 0 where no penalty is set, so that none are copied."""
        forbidden = dict.fromkeys(stopping.end_token_ids | stopping.stop_token_ids, -np.inf)
        self.bias = _bias(dict(sampling.logit_bias))
        self.early_bias = _bias({**sampling.logit_bias, **forbidden}) if stopping.min_tokens else self.bias
        """Biases while the answer is shorter than min_tokens: nothing that would end it can be chosen."""
        self.mask = (
            _mask(sampling.allowed_token_ids, vocabulary_size) if sampling.allowed_token_ids is not None else None
        )

    def for_choice(self, seed: int, choice: int) -> NDArray[np.void]:
        """The sampler row of one choice, SAMPLER_ROW []; `draw` and the slices are the step's to set."""
        row = self.sample.copy()
        row["seed"] = derive_seed(seed, choice)
        return row


def _sample_row(request: Request, flags: RowFlag) -> NDArray[np.void]:
    sampling = request.sampling
    row = np.zeros((), SAMPLER_ROW)
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "top_k",
    ):
        row[name] = getattr(sampling, name)
    row["top_logprobs"], row["flags"] = request.top_logprobs, flags
    return row


def _penalises(request: Request) -> bool:
    sampling = request.sampling
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0)


def _bias(values: dict[int, float]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids, ascending, and their biases."""
    ids = sorted(values)
    return np.array(ids, np.int32), np.array([values[token] for token in ids], np.float32)


def _mask(allowed: Collection[int], vocabulary_size: int) -> NDArray[np.uint32]:
    """One bit per id, id 0 the lowest bit of word 0. Shapes: u32 [⌈V/32⌉]."""
    bits = np.zeros((vocabulary_size + 31) // 32 * 32, np.bool_)
    bits[np.fromiter(allowed, np.int64, len(allowed))] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
