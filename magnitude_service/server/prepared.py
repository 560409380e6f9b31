"""A request that was checked, between who checks it (convert.py) and who runs it (generation.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnitude_service.scheduling.request import Request
from magnitude_service.scheduling.session import NO_TEXT, TextState


@dataclass(frozen=True, slots=True)
class Returns:
    """What an answer carries beside its text; `logprobs` are absent, or how many likeliest go with each token."""

    token_ids: bool = False
    prompt_token_ids: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    timings: bool = True
    prompt_progress: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was checked: what the engine gets, and what is done above it."""

    request: Request
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False
    returns: Returns = field(default_factory=Returns)
    echo: str = ""
    """Text that each choice begins with."""
    metadata: dict[str, str] = field(default_factory=dict)
    text: TextState = NO_TEXT
    """Where the text of the answer that goes on stands."""
