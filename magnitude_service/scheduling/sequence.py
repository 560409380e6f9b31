"""One choice of one request: its tokens, how far they are computed, and its pages."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from magnitude_service.allocator.pages import pages_for
from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.scheduling.options import ModelLimits
from magnitude_service.scheduling.request import FinishReason, Request, Timings
from magnitude_service.scheduling.sampler_rows import SamplerTemplate
from magnitude_service.scheduling.session import NO_PAGES, SavedPages


class Chunk(NamedTuple):
    """The next `rows` tokens of a sequence, to be computed in one step.

    `scored` are the positions whose row gives the log-probability of the prompt token that follows; with `samples`,
    the last row chooses a token.
    """

    sequence: Sequence
    rows: int
    scored: range
    samples: bool


class RequestState:
    """One submitted request and its choices. The engine thread owns it.

    The prompt is computed once: the first living choice computes it, into pages that all choices share; the others
    then compute only what follows the last whole page of it, which they need for themselves. What a session has of
    tokens and pages comes before the request's own.
    """

    __slots__ = (
        "admitted_seconds",
        "arrival",
        "arrival_seconds",
        "cached_tokens",
        "expiry_seconds",
        "first_token_seconds",
        "history",
        "prompt",
        "prompt_computed",
        "prompt_seconds",
        "request",
        "sequences",
        "session",
        "shared_pages",
        "template",
    )

    def __init__(self, request: Request, limits: ModelLimits, arrival_seconds: float) -> None:
        self.request = request
        self.session = request.session
        self.history = 0 if self.session is None else self.session.settled
        """Tokens of the session before this request."""
        self.prompt = request.prompt
        """All tokens that are there before one is generated."""
        if self.session is not None:
            assert request.choices == 1, "a session goes on in one way"
            self.prompt = np.concatenate([self.session.tokens[: self.history], request.prompt])
        self.arrival = 0
        """How many requests came before; the engine thread sets it."""
        self.arrival_seconds = arrival_seconds
        self.expiry_seconds = _expiry(request, arrival_seconds)
        """The earlier of deadline and time limit."""
        self.admitted_seconds: float | None = None
        self.prompt_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.prompt_computed = 0
        """Prompt tokens that some choice has computed; PromptProgress reports them."""
        self.cached_tokens = 0
        self.shared_pages = (request.prompt.size - 1) // PAGE_TOKENS if request.choices > 1 else 0
        """Pages that the prompt fills and leaves at least its last token out of: each choice needs that row."""
        self.template = SamplerTemplate(request, limits.vocabulary_size)
        left = limits.context_tokens - int(self.prompt.size)
        wanted = request.stopping.max_tokens
        generated_max = left if wanted is None else wanted
        reason = FinishReason.CONTEXT_LIMIT if wanted is None else FinishReason.MAX_TOKENS
        self.sequences = [Sequence(self, choice, generated_max, reason) for choice in range(request.choices)]

    @property
    def living(self) -> list[Sequence]:
        """The choices that have not ended, the first of which computes the prompt."""
        return [sequence for sequence in self.sequences if not sequence.ended]

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens in pages that all choices share."""
        return self.shared_pages * PAGE_TOKENS

    @property
    def pages_in_all(self) -> int:
        """Pages that let every living choice run to its end, shared ones counted once."""
        return self.shared_pages + sum(sequence.pages_max - self.shared_pages for sequence in self.living)

    @property
    def pages_needed(self) -> int:
        """Those of them that the session does not have already."""
        kept = 0 if self.session is None else self.session.pages.size
        return max(self.pages_in_all - kept, 0)

    def resume(self) -> None:
        """Begins where the session's pages end, as they are now; before admission."""
        if self.session is None:
            return
        [sequence] = self.sequences
        sequence.computed = self.prompt_computed = self.cached_tokens = self.session.computed
        sequence.loading = None if self.session.pages.size else self.session.saved_pages

    def progress_words(self) -> str:
        """How far the request has come, for messages."""
        if self.admitted_seconds is None:
            return "in the queue"
        if self.prompt_seconds is None:
            return f"after {self.prompt_computed} of {self.prompt.size} prompt tokens"
        return f"after {sum(sequence.generated for sequence in self.sequences)} generated tokens"

    def timings(self, now: float) -> Timings:
        """How the time from arrival until `now` was spent."""
        admitted, prompt, first = self.admitted_seconds, self.prompt_seconds, self.first_token_seconds
        return Timings(
            queue=(now if admitted is None else admitted) - self.arrival_seconds,
            prefill=0.0 if admitted is None else (now if prompt is None else prompt) - admitted,
            first_token=0.0 if first is None else first - self.arrival_seconds,
            decode=0.0 if first is None else now - first,
            total=now - self.arrival_seconds,
        )


def _expiry(request: Request, arrival_seconds: float) -> float:
    deadline, limit = request.deadline_seconds, request.stopping.time_limit_seconds
    return min(
        math.inf if deadline is None else deadline,
        math.inf if limit is None else arrival_seconds + limit,
    )


class Sequence:
    """One choice. Its tokens are the prompt and what was generated; the first `computed` of them lie in its pages."""

    __slots__ = (
        "choice",
        "chosen_seconds",
        "computed",
        "ended",
        "generated_max",
        "length",
        "limit_reason",
        "loaded",
        "loading",
        "pages",
        "prompt_length",
        "sampler",
        "state",
        "tokens",
    )

    def __init__(self, state: RequestState, choice: int, generated_max: int, limit_reason: FinishReason) -> None:
        self.state = state
        self.choice = choice
        self.prompt_length = int(state.prompt.size)
        self.generated_max = generated_max
        self.limit_reason = limit_reason
        """Why the choice ends when `generated_max` tokens are there."""
        self.sampler = state.template.for_choice(state.request.sampling.seed, choice)
        self.length = self.prompt_length
        self.chosen_seconds: float | None = None
        """When the last token was chosen."""
        self.computed = 0
        self.ended = False
        self.tokens = state.prompt  # with room for the answer from `begin` on
        self.pages = NO_PAGES
        self.loading: SavedPages | None = None
        """Pages of the session's saved version that are to be loaded before anything is computed."""
        self.loaded = 0
        """Tokens of them that are loaded."""

    @property
    def pages_max(self) -> int:
        """Pages that this choice fills at most. The last token is chosen, but never computed."""
        return pages_for(self.prompt_length + max(self.generated_max - 1, 0))

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self.length - self.prompt_length

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt is computed, so that each step gives one token."""
        return self.computed >= self.prompt_length

    @property
    def is_waiting_for_prompt(self) -> bool:
        """Whether another choice is still computing the prompt that this one shares."""
        state = self.state
        return state.prompt_computed < self.prompt_length and self.choice != state.living[0].choice

    def begin(self, pages: NDArray[np.int32]) -> None:
        """Admits the choice with all the pages it will ever need."""
        assert pages.size == self.pages_max, f"{pages.size} pages for a sequence that needs {self.pages_max}"
        self.pages = pages
        self.tokens = np.empty(self.prompt_length + self.generated_max, np.int32)
        self.tokens[: self.prompt_length] = self.state.prompt

    def end_loading(self) -> None:
        """All saved pages are there: what they hold need not be computed."""
        assert self.loaded < self.prompt_length, "a session keeps its last token for the next request to begin with"
        self.computed = self.state.prompt_computed = self.state.cached_tokens = self.loaded
        self.loading = None

    def chunk(self, rows: int) -> Chunk:
        """The next `rows` tokens, and what is wanted of them."""
        end = self.computed + rows
        assert self.computed < end <= self.length, f"a chunk of {rows} at {self.computed} of {self.length}"
        scored = range(0)
        if self.state.request.prompt_logprobs and not self.is_decoding:
            first = max(self.computed, self.state.prompt_computed, self.state.history - 1)
            scored = range(first, max(first, min(end, self.prompt_length - 1)))
        return Chunk(self, rows, scored, end == self.length and self.generated_max > 0)

    def accept(self, token: int) -> FinishReason | None:
        """Appends a chosen token, unless it ends the answer and is no part of it; says whether the answer ends."""
        stopping = self.state.request.stopping
        if token in stopping.end_token_ids:
            return FinishReason.EOS
        if token in stopping.stop_token_ids:
            return FinishReason.STOP_TOKEN
        self.tokens[self.length] = token
        self.length += 1
        return self.limit_reason if self.generated == self.generated_max else None

    def cut(self, generated_kept: int) -> None:
        """Forgets what was generated after the first `generated_kept` tokens."""
        self.length = min(self.length, self.prompt_length + generated_kept)

    def bias(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Ids and biases for the token that is chosen next."""
        template, stopping = self.state.template, self.state.request.stopping
        return template.early_bias if self.generated < stopping.min_tokens else template.bias
