"""How busy the engine is, and what each of its steps took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

RATE_SECONDS = 5.0
"""A rate forgets what is older than a few times this."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that run and that wait, key/value pages, and generated tokens per second over the last seconds.

    `pages_idle` are those of `pages_used` that idle sessions have: a request that lacks pages gets them at once.
    """

    running: int
    waiting: int
    pages_used: int
    pages_total: int
    tokens_per_second: float
    pages_idle: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: how many rows (tokens) it computed, in what time.

    `token_gaps` are seconds since the token before, for each token chosen that had one; with `is_decode` every row was
    a token whose successor is chosen.
    """

    rows: int
    seconds: float
    token_gaps: Sequence[float] = ()
    is_decode: bool = False


class RateMeter:
    """Things per second over the last seconds: what was counted, and the time for it, are forgotten exponentially.

    Only time since `begin` is divided by, so that the rate is right from the first second on.
    """

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._counted = (0.0, begin)  # as of when; replaced as a whole, so that any thread may read

    def add(self, count: int, now: float) -> None:
        """`count` more things are done at `now`. One thread adds, in order of time."""
        weight, last = self._counted
        self._counted = (weight * math.exp((last - now) / RATE_SECONDS) + count, now)

    def read(self, now: float) -> float:
        """The rate at `now`."""
        weight, last = self._counted
        seconds = -RATE_SECONDS * math.expm1((self._begin - now) / RATE_SECONDS)
        return weight * math.exp((last - now) / RATE_SECONDS) / seconds if seconds > 0 else 0.0
