"""Requests in flight: events of the engine in, text of each choice out.

The engine thread calls `Generations.deliver` once per step; everything else here runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from magnitude_service.errors import (
    CancelledError,
    ExhaustedError,
    InvalidRequestError,
    MagnitudeError,
)
from magnitude_service.scheduling.request import (
    ChoiceFinished,
    Event,
    FinishReason,
    PromptProgress,
    RequestFinished,
    TokenChosen,
    TokenLogprobs,
)
from magnitude_service.scheduling.session import Session
from magnitude_service.server.answer import Answer, Piece
from magnitude_service.server.prepared import Prepared
from magnitude_service.server.served_models import Runtime

if TYPE_CHECKING:
    from magnitude.v1 import snapshot_pb2

SLOW_READER = "SLOW_READER"
"""The reason of a stream that failed because nobody read it."""

TOKEN_BYTES = 4
LOGPROB_BYTES = 8
"""What a token id, and a log-probability with its id, count for in what a stream owes its reader."""


class Generation:
    """One request in flight. A text worker may make it; from its start on only the event loop touches it."""

    def __init__(
        self,
        prepared: Prepared,
        runtime: Runtime,
        buffer_bytes: int | None = None,
        save: Callable[[Session], asyncio.Task[snapshot_pb2.Snapshot]] | None = None,
    ) -> None:
        """`save` is called with the session when the request has ended well, to save it and let it go."""
        self.prepared = prepared
        self.saving: asyncio.Task[snapshot_pb2.Snapshot] | None = None
        """The save of the session afterwards, once it has begun."""
        self._save = save
        session = prepared.request.session
        self.session_tokens = 0 if session is None else session.settled
        self.spell = runtime.spell
        self.answers = [Answer(prepared, runtime.tokenizer) for _ in range(prepared.request.choices)]
        self.finished: RequestFinished | None = None
        self.failure: MagnitudeError | None = None
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self._engine = runtime.engine
        self._buffer_bytes = buffer_bytes  # what may be owed to the reader; None: everything
        self._owed_bytes = 0
        self._progress: PromptProgress | None = None
        self._cancelled = False

    @property
    def request_id(self) -> str:
        """The request's name."""
        return self.prepared.request.request_id

    def submit(self) -> None:
        """Queues the request. Raises what the engine refuses it with."""
        self._engine.submit(self.prepared.request)

    def take_event(self, event: Event) -> None:
        """Moves on by one event of the engine."""
        if isinstance(event, TokenChosen):
            answer = self.answers[event.choice]
            if answer.end is None:
                self._owe(answer.add(event.token, event.logprobs), event.logprobs)
                if answer.end is not None:
                    self._engine.finish(self.request_id, event.choice, answer.tokens_kept)
        elif isinstance(event, ChoiceFinished):
            answer = self.answers[event.choice]
            if answer.end is None:
                self._owe(answer.finish(event.reason, event.token), None)
        elif isinstance(event, PromptProgress):
            self._add_progress(event)
        else:
            self._finish(event)
        self.changed.set()

    def cancel(self) -> None:
        """Ends the request early, with what there is."""
        if self.finished is None and not self._cancelled:
            self._cancelled = True
            self._engine.abort(self.request_id)

    def abandon_unless_ended(self) -> None:
        """Nobody waits for the answer any more. Until the engine has let go, the request's name stays taken."""
        if not self.ended.is_set():
            self._fail(CancelledError("The caller went away."))

    def take_progress(self) -> PromptProgress | None:
        """How far the prompt is, with the log-probabilities since the last call; None if nothing is new."""
        progress, self._progress = self._progress, None
        return progress

    def take_pieces(self) -> list[Piece]:
        """What was added to each choice since the last call. The reader then owes us nothing."""
        self._owed_bytes = 0
        return [answer.take() for answer in self.answers]

    def _add_progress(self, event: PromptProgress) -> None:
        """Joins what the reader has not taken yet into one event."""
        held = self._progress
        if held is not None and held.logprobs:
            event = PromptProgress(
                event.request_id, event.done, event.total, held.first, [*held.logprobs, *event.logprobs]
            )
        self._progress = event

    def _owe(self, text: str, logprobs: TokenLogprobs | None) -> None:
        top = 0 if logprobs is None else 1 + len(logprobs.top)
        self._owed_bytes += len(text) + TOKEN_BYTES + top * LOGPROB_BYTES
        if self._buffer_bytes is not None and self._owed_bytes > self._buffer_bytes and self.failure is None:
            self._fail(
                ExhaustedError(
                    f"The stream's reader is too slow: more than {self._buffer_bytes} bytes wait for it.",
                    remedy="Read faster, or call Infer.",
                    reason=SLOW_READER,
                    allowed_bytes=self._buffer_bytes,
                )
            )

    def _fail(self, error: MagnitudeError) -> None:
        self.failure = error
        if self.finished is None:
            self._engine.abort(self.request_id)
        self.changed.set()
        self.ended.set()

    def _finish(self, event: RequestFinished) -> None:
        self.finished = event
        error = event.error
        if self._cancelled and (error is None or isinstance(error, CancelledError)):
            error = None
            for answer in self.answers:
                if answer.end is None:
                    answer.finish(FinishReason.CANCELLED, None)
        self.failure = self.failure or error
        session = self.prepared.request.session
        if session is not None:
            self._settle(session)
        self.ended.set()

    def _settle(self, session: Session) -> None:
        """The engine has let go of the session: what was answered belongs to it, or nothing of a request that failed,
        or was cancelled before it ran."""
        request, [answer] = self.prepared.request, self.answers
        prompt_tokens = int(request.prompt.size)
        if self.failure is not None or session.tokens.size < session.settled + prompt_tokens + answer.tokens_kept:
            session.roll_back()
        else:
            session.settle(prompt_tokens, answer.tokens_kept, answer.rest)
            session.seed, session.window_tokens = request.sampling.seed, request.sampling.penalty_window
        if self.failure is None and self._save is not None:
            self.saving = self._save(session)
        else:
            self._engine.sessions.release(session)


class Generations:
    """All requests in flight, of every model, by name."""

    def __init__(self) -> None:
        self._running: dict[str, Generation] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._running)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop that everything runs on; before the first request."""
        self._loop = loop

    def start(self, generation: Generation) -> None:
        """Hands the request to its engine. Raises what the engine refuses it with, and InvalidRequestError for a name
        that is taken."""
        request_id = generation.request_id
        if request_id in self._running:
            raise InvalidRequestError(
                f"A request named {request_id} runs already.",
                remedy="Choose another name, or leave it out.",
                field="request_id",
                reason="REQUEST_ID_IN_USE",
            )
        self._running[request_id] = generation
        try:
            generation.submit()
        except BaseException:
            del self._running[request_id]
            raise

    def deliver(self, events: Sequence[Event]) -> None:
        """Takes the events of one step, on any thread."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._route, events)
        except RuntimeError:
            return  # closed between the two lines: nobody is left to hear

    def cancel(self, request_ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """Ends requests early; returns the names of those that were running, and of the others."""
        aborted, unknown = [], []
        for request_id in request_ids:
            generation = self._running.get(request_id)
            if generation is None or generation.failure is not None:
                unknown.append(request_id)
            else:
                generation.cancel()
                aborted.append(request_id)
        return aborted, unknown

    def _route(self, events: Sequence[Event]) -> None:
        for event in events:
            generation = self._running.get(event.request_id)
            if generation is None:
                continue
            if isinstance(event, RequestFinished):
                del self._running[event.request_id]
            if generation.failure is None or isinstance(event, RequestFinished):
                generation.take_event(event)
