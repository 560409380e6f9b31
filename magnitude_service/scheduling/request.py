"""What the server asks of the engine, and what it hears back. Neither protobuf nor gRPC is known here.

The events of one request come in this order, spread over the steps:

    PromptProgress*                 `done` grows; where a choice gets a token, one with done == total came before
    (TokenChosen* ChoiceFinished)   of each choice, the choices interleaved
    RequestFinished                 exactly once, last; with `error`, its open choices get no ChoiceFinished

A choice that is ended from above (`EngineThread.finish`) gets no ChoiceFinished, unless it had just ended by itself.
Tokens that were computed before the engine heard of it may still come as TokenChosen, and are to be ignored.
All events of a step are handed over together, in one call, by the engine thread; calls never overlap.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.sampling import SamplingParameters as SamplingParameters
from magnitude_service.errors import MagnitudeError
from magnitude_service.scheduling.session import Session


@dataclass(frozen=True, slots=True)
class StoppingParameters:
    """When an answer ends. Stop *strings* are matched above, in text; `stop_token_ids` here include the model's own
    end-of-generation ids unless the request ignores them (`end_token_ids` then is empty).

    `max_tokens` None: what the context has left; 0: the prompt is computed and nothing generated. Before `min_tokens`
    no end and no stop token can be chosen. `time_limit_seconds` counts from arrival, time in the queue included."""

    max_tokens: int | None
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    end_token_ids: frozenset[int] = frozenset()
    time_limit_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted call: `choices` independent answers to one prompt."""

    request_id: str
    prompt: NDArray[np.int32]
    sampling: SamplingParameters
    stopping: StoppingParameters
    choices: int = 1
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    priority: int = 0
    """Higher goes first among those that wait, but nobody is overtaken for ever; see scheduling/policy.py."""
    deadline_seconds: float | None = None
    """On the monotonic clock; the request fails with DEADLINE_EXCEEDED when it passes."""
    session: Session | None = None
    """What the prompt continues, held for this request until after RequestFinished: then whoever holds it settles it or
    rolls it back. There is one choice."""


class FinishReason(enum.Enum):
    """Why an answer ended; names as in the contract."""

    EOS = "EOS"
    STOP_STRING = "STOP_STRING"
    STOP_TOKEN = "STOP_TOKEN"
    MAX_TOKENS = "MAX_TOKENS"
    CONTEXT_LIMIT = "CONTEXT_LIMIT"
    TIME_LIMIT = "TIME_LIMIT"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probability of a token, and of the likeliest ones at its place."""

    logprob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """`done` of `total` prompt tokens are computed, once for all choices, those of the session that it continues
    included. With `logprobs`, those of the request's prompt tokens from `first` on. Prompt token 0 has none where no
    session comes before it."""

    request_id: str
    done: int
    total: int
    first: int = 0
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class TokenChosen:
    """One token of one choice. An ending token (EOS, stop token) comes as ChoiceFinished, not as TokenChosen."""

    request_id: str
    choice: int
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """A choice ended by itself. `token` is the id that ended it (EOS, STOP_TOKEN)."""

    request_id: str
    choice: int
    reason: FinishReason
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. `queue` from arrival until admission, `prefill` from there until the prompt is computed, `first_token`
    from arrival, `decode` from the first token to the end, `total` from arrival to the end. What was never reached
    is 0; a request that ends in the queue has spent all its time there."""

    queue: float
    prefill: float
    first_token: float
    decode: float
    total: float


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The last event of a request: every choice has ended and its pages are free, or its session's again. With `error`,
    it failed. `cached_tokens` of its prompt and session were computed before."""

    request_id: str
    timings: Timings
    cached_tokens: int = 0
    error: MagnitudeError | None = None


Event = PromptProgress | TokenChosen | ChoiceFinished | RequestFinished
