"""One step of the engine: hear what was asked, let go of what is over, plan, compute, and say what happened.

Nothing here waits, and nothing here is shared between threads: `EngineThread` takes steps again and again, and a
test can do the same with a clock of its own.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections import abc
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from magnitude_service.allocator.pages import PagePool
from magnitude_service.engine.batch import StepPlan, StepResult
from magnitude_service.engine.canonical_pages import PageCopies
from magnitude_service.errors import (
    CancelledError,
    DeadlineExceededError,
    IntegrityError,
    MagnitudeError,
    UnavailableError,
)
from magnitude_service.scheduling.load import StepReport
from magnitude_service.scheduling.options import SchedulingOptions
from magnitude_service.scheduling.outcome import StepOutcome
from magnitude_service.scheduling.policy import Schedule, plan, rank
from magnitude_service.scheduling.request import ChoiceFinished, Event, FinishReason, RequestFinished
from magnitude_service.scheduling.sequence import Chunk, RequestState, Sequence
from magnitude_service.scheduling.session_pages import PageExport, SessionPages
from magnitude_service.scheduling.session_table import SessionTable
from magnitude_service.scheduling.step_plan import assemble

_log = logging.getLogger(__name__)

RETRY_SECONDS = 0.01
"""How soon a request is looked at again that waits for pages which a save still reads."""


class Executor(Protocol):
    """Computes a step. Both executors of `engine` are one."""

    def step(self, plan: StepPlan) -> StepResult | None:
        """Runs the whole step; None where `abort` ended it. Raises a MagnitudeError where it cannot."""

    def abort(self) -> None:
        """Ends the step that runs now, or else the next one, soon; from any thread."""


@dataclass(slots=True)
class Commands:
    """What was asked since the last step, to be done in the order of the fields."""

    submitted: list[RequestState] = field(default_factory=list)
    finished: dict[tuple[str, int], int] = field(default_factory=dict)
    """(request id, choice) → how many generated tokens are kept."""
    aborted: set[str] = field(default_factory=set)
    exports: list[PageExport] = field(default_factory=list)
    woken: bool = False
    """Whether sessions have changed hands."""
    drain_at: float | None = None
    """When what is still there ends with a partial result; absent while the server takes requests."""


class EngineLoop:
    """Requests, sequences and pages of one loaded model.

    Every page in use is held by a sequence in `running` or by a session in `sessions`. A request that ends, for
    whatever reason, has given its pages back, or to its session, before the step that ended it returns.
    """

    def __init__(
        self,
        executor: Executor,
        pool: PagePool,
        options: SchedulingOptions,
        clock: abc.Callable[[], float],
        *,
        check: abc.Callable[[], None] | None = None,
        on_step: abc.Callable[[StepReport], None] | None = None,
        sessions: SessionTable | None = None,
        copies: PageCopies | None = None,
    ) -> None:
        self.pool = pool
        if sessions is None:  # an empty table is false
            sessions = SessionTable(options.sessions_live_max, clock, lambda: None)
        self.sessions = sessions
        self.waiting: list[RequestState] = []
        """Sorted by rank."""
        self.running: list[Sequence] = []
        """Living, in order of admission."""
        self.requests: dict[str, RequestState] = {}
        """All that have not ended, waiting ones included."""
        self.failure: MagnitudeError | None = None
        """Set once the model's file can no longer be trusted; then nothing is left, and `step` is called no more."""
        self.tokens_chosen = 0
        """Since whoever reads it last set it to 0."""
        self._executor = executor
        self._options = options
        self._clock = clock
        self._check = check
        self._on_step = on_step
        self._arrivals = 0
        self._next_expiry = math.inf
        self._events: list[Event] = []
        self._session_pages = SessionPages(pool, self.sessions, copies, options)
        self._is_stuck = False

    def step(self, commands: Commands) -> list[Event]:
        """Does what was asked, computes at most one step, and returns its events in order."""
        return self.compute(self.prepare(commands))

    def prepare(self, commands: Commands) -> Schedule:
        """The first half of a step: does what was asked, ends what is over, and admits what fits."""
        assert self.failure is None, "a failed engine takes no steps"
        self._events = []
        begin = self._clock()
        self._take(commands, begin)
        self._session_pages.exports += commands.exports
        if commands.drain_at is not None and begin >= commands.drain_at:
            self._end_all(begin)
        if begin >= self._next_expiry:
            self._expire(begin)
        copied = self._session_pages.copy(self.running)
        self._session_pages.make_room(self.running, self.waiting, begin)
        schedule = plan(self.running, self.waiting, self.pool.pages_free, self._options)
        for state in schedule.admitted:
            self._admit(state, begin)
        self._is_stuck = not (copied or schedule.admitted or schedule.chunks)
        return schedule

    def idle_seconds(self) -> float:
        """How long nothing needs to be done but for what is asked meanwhile; infinity: for good."""
        if self._session_pages.exports or (self.requests and not self._is_stuck):
            return 0.0
        left = max(self._session_pages.next_expiry() - self._clock(), 0.0)
        return min(left, RETRY_SECONDS) if self.requests else left

    def fail_exports(self, error: MagnitudeError) -> None:
        """Ends all exports that are not done."""
        self._session_pages.fail(error)

    def compute(self, schedule: Schedule) -> list[Event]:
        """The second half, which takes the time; the events of both, in order."""
        if schedule.chunks:
            self._compute(schedule.chunks)
        return self._events

    # What was asked

    def _take(self, commands: Commands, now: float) -> None:
        for state in commands.submitted:
            state.resume()
            state.arrival = self._arrivals
            self._arrivals += 1
            self.requests[state.request.request_id] = state
            bisect.insort(self.waiting, state, key=lambda other: rank(other, self._options))
            self._next_expiry = min(self._next_expiry, state.expiry_seconds)
        for (request_id, choice), kept in commands.finished.items():
            if request_id in self.requests:
                sequence = self.requests[request_id].sequences[choice]
                if not sequence.ended:
                    sequence.cut(kept)
                    self._end_choices([sequence], now)
        for request_id in commands.aborted & self.requests.keys():
            error = CancelledError("The request was aborted.")
            self._finish(self.requests[request_id], now, error)

    def _end_all(self, now: float) -> None:
        """The grace period is over: running requests end with what they have, waiting ones have nothing."""
        for state in list(self.requests.values()):
            if state.admitted_seconds is not None:
                self._end_early(state, FinishReason.CANCELLED, now)
            else:
                error = UnavailableError(
                    "The server is shutting down, and the request was still in the queue.",
                    remedy="Send it again, to another server where there is one.",
                    reason="DRAINING",
                    retry_after_seconds=1.0,
                )
                self._finish(state, now, error)

    def _expire(self, now: float) -> None:
        for state in list(self.requests.values()):
            deadline = state.request.deadline_seconds
            if deadline is not None and now >= deadline:
                error = DeadlineExceededError(
                    f"The deadline passed {state.progress_words()}, {now - state.arrival_seconds:.3f} s after arrival.",
                    remedy="Allow more time, or set time_limit_ms to get what is there by then.",
                )
                self._finish(state, now, error)
            elif now >= state.expiry_seconds:
                self._end_early(state, FinishReason.TIME_LIMIT, now)
        self._next_expiry = min((state.expiry_seconds for state in self.requests.values()), default=math.inf)

    # One step

    def _admit(self, state: RequestState, now: float) -> None:
        """Gives every choice its pages; those that the prompt fills are the same for all."""
        state.admitted_seconds = now
        self.waiting.remove(state)
        shared = self.pool.allocate(state.shared_pages)
        assert shared is not None, "a request was admitted without room for its prompt"
        if state.session is not None:
            shared = self._session_pages.hand_over(state)
        for index, sequence in enumerate(state.living):
            own = self.pool.allocate(sequence.pages_max - shared.size)
            assert own is not None, "a request was admitted without room for its answers"
            if index:
                self.pool.share(shared)
            sequence.begin(np.concatenate([shared, own]))
            self.running.append(sequence)

    def _compute(self, chunks: abc.Sequence[Chunk]) -> None:
        begin = self._clock()
        step_plan = assemble(chunks)
        try:
            result = self._executor.step(step_plan)
            if self._check is not None:
                self._check()
            if result is None:
                return  # as if it had never been planned: the next step computes the same positions
            outcome = StepOutcome(result)
            now = self._clock()
            outcome.apply(chunks, now)
        except Exception as error:
            self._fail_step(chunks, error)
            return
        self.tokens_chosen += outcome.tokens
        self._events.extend(outcome.events)
        self._end_choices(outcome.ended, now)
        for state, row_error in outcome.failed.items():
            self._finish(state, now, row_error)
        if self._on_step is not None:
            rows = step_plan.tokens.size
            self._on_step(StepReport(rows, self._clock() - begin, outcome.token_gaps, rows == outcome.tokens))

    def _fail_step(self, chunks: abc.Sequence[Chunk], error: Exception) -> None:
        """A step gave no result: its requests fail, those that had no part in it do not.

        A damaged file concerns them all.
        """
        now = self._clock()
        if isinstance(error, IntegrityError):
            _log.error("the model's file can no longer be trusted: %s", error)
            self.failure = error
            for state in list(self.requests.values()):
                self._finish(state, now, error)
            return
        _log.error("a step of %d sequences failed", len(chunks), exc_info=error)
        for state in dict.fromkeys(chunk.sequence.state for chunk in chunks):
            typed = error if isinstance(error, MagnitudeError) else _unexpected(error)
            if state.request.request_id in self.requests:
                self._finish(state, now, typed)

    # Endings

    def _end_early(self, state: RequestState, reason: FinishReason, now: float) -> None:
        """Ends all choices with what they have."""
        living = state.living
        self._events.extend(ChoiceFinished(state.request.request_id, s.choice, reason) for s in living)
        self._end_choices(living, now)

    def _end_choices(self, ended: abc.Iterable[Sequence], now: float) -> None:
        """Gives back the pages of choices whose events are said, and ends requests that have no other choice."""
        for sequence in ended:
            self._release(sequence)
            if not sequence.state.living:
                self._finish(sequence.state, now)

    def _finish(self, state: RequestState, now: float, error: MagnitudeError | None = None) -> None:
        for sequence in state.living:
            self._release(sequence)
        if state.admitted_seconds is None:
            self.waiting.remove(state)
        del self.requests[state.request.request_id]
        timings = state.timings(now)
        self._events.append(RequestFinished(state.request.request_id, timings, state.cached_tokens, error))

    def _release(self, sequence: Sequence) -> None:
        sequence.ended = True
        if sequence.state.admitted_seconds is not None:
            self.running.remove(sequence)
            if sequence.state.session is not None:
                self._session_pages.take_back(sequence)
            else:
                self.pool.free(sequence.pages)


def _unexpected(error: Exception) -> MagnitudeError:
    return MagnitudeError(
        f"The step failed with {type(error).__name__}.",
        remedy="Send the request again; if it fails again, report it with the server's log.",
    )
