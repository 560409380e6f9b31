"""What one step computes, and what it gives back: plain arrays that cross into native code in one call.

T rows (tokens) of S sequences; R of the rows want logits. A row's result depends on its own sequence
alone, whatever else is in the step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PAGE_TOKENS = 32
"""Tokens of one key/value page. `kPageTokens` in kernels/csrc/ops.h is the same number; a test compares."""

SAMPLER_ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("draw", np.uint64),  # index of the random draw: the position of the token being chosen
        ("temperature", np.float32),  # 0: the most likely token, without a draw
        ("top_p", np.float32),  # 1: off
        ("min_p", np.float32),  # 0: off
        ("typical_p", np.float32),  # 1: off
        ("repetition_penalty", np.float32),  # 1: off
        ("presence_penalty", np.float32),  # 0: off
        ("frequency_penalty", np.float32),  # 0: off
        ("top_k", np.uint32),  # 0: off
        ("top_logprobs", np.uint32),  # how many (id, log-probability) pairs to return, 0…TOP_LOGPROBS_MAX
        ("target", np.uint32),  # with SCORE: the id whose log-probability is wanted
        ("flags", np.uint32),  # RowFlag
        ("window_begin", np.uint32),  # the row's slice of StepPlan.window: the tokens that penalties look at
        ("window_end", np.uint32),
        ("bias_begin", np.uint32),  # the row's slice of StepPlan.bias_ids and bias_values
        ("bias_end", np.uint32),
        ("mask", np.uint32),  # with MASKED: row index into StepPlan.masks
    ],
    align=True,
)
"""One output row's sampling. `SamplerRow` in kernels/csrc/sampler.h has the same layout; a test compares offsets."""

TOP_LOGPROBS_MAX = 32


class RowFlag(enum.IntFlag):
    """How an output row is treated."""

    SAMPLE = 0
    SCORE = 1
    """Do not sample: return the log-probability of `target` under the unmodified logits."""
    MASKED = 2
    """Only ids whose bit is set in the row's mask may be chosen."""


class RowStatus(enum.IntEnum):
    """What became of an output row."""

    OK = 0
    NOT_FINITE = 1
    """A logit is NaN, or none is finite: this request fails, nobody else's."""
    NO_CANDIDATE = 2
    """Masks and biases leave no token to choose."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything that one step needs. Rows of a sequence are adjacent and in order of position.

    Shapes: tokens i32 [T]; positions i32 [T]; row_begin i32 [S+1] (rows of sequence s are
    row_begin[s]:row_begin[s+1]); page_tables i32 [S, pages] (position p of s lies in page
    page_tables[s, p // PAGE_TOKENS]; entries behind the last used one are ignored); output_rows i32 [R], ascending;
    samplers SAMPLER_ROW [R]; window i32 [*]; bias_ids i32 [*]; bias_values f32 [*]; masks u32 [*, ⌈V/32⌉].
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_begin: NDArray[np.int32]
    page_tables: NDArray[np.int32]
    output_rows: NDArray[np.int32]
    samplers: NDArray[np.void]
    window: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    bias_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    bias_values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    masks: NDArray[np.uint32] = field(default_factory=lambda: np.empty((0, 0), np.uint32))


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step chose. Shapes: token i32 [R], logprob f32 [R], status u8 [R] (RowStatus), top_ids i32 [R, n],
    top_logprobs f32 [R, n] with n the step's largest `top_logprobs` (a row's surplus is undefined).

    Log-probabilities are natural logarithms under softmax of the unmodified logits (before temperature,
    penalties, biases and masks).
    """

    token: NDArray[np.int32]
    logprob: NDArray[np.float32]
    status: NDArray[np.uint8]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
