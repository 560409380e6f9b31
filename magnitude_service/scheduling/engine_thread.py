"""The engine thread: steps while there is work, sleeps while there is none, and survives whatever a step does."""

from __future__ import annotations

import logging
import math
import threading
from collections import abc

import numpy as np
from numpy.typing import NDArray

from magnitude_service.allocator.pages import PagePool
from magnitude_service.engine.canonical_pages import PageCopies
from magnitude_service.errors import MagnitudeError
from magnitude_service.scheduling.admission import check_pages, check_request
from magnitude_service.scheduling.engine_loop import EngineLoop, Executor
from magnitude_service.scheduling.inbox import Inbox, stopped
from magnitude_service.scheduling.load import Load, RateMeter, StepReport
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.request import Event, Request, RequestFinished
from magnitude_service.scheduling.sequence import RequestState
from magnitude_service.scheduling.session import Session
from magnitude_service.scheduling.session_pages import PageExport
from magnitude_service.scheduling.session_table import SessionTable

_log = logging.getLogger(__name__)

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 30.0
"""Bounds of the delay that a refused client is told."""


class EngineThread:
    """Runs one loaded model. All methods may be called from any thread, and none but `stop` and `wait_drained` waits.

    `on_events` gets all events of a step in one call, from the engine thread: it must hand them on and return.
    `check` is called after each step, before its result is believed; IntegrityError from it fails every request, now
    and later. `on_failed` then hears of it once, before the requests do. `on_step` hears of each step that computed
    something, on the engine thread too. `copies` reads and fills single pages; without it sessions keep their pages,
    but none can be saved.
    """

    def __init__(
        self,
        executor: Executor,
        pool: PagePool,
        limits: ModelLimits,
        options: SchedulingOptions,
        clock: abc.Callable[[], float],
        on_events: abc.Callable[[list[Event]], None],
        *,
        check: abc.Callable[[], None] | None = None,
        on_failed: abc.Callable[[MagnitudeError], None] | None = None,
        on_step: abc.Callable[[StepReport], None] | None = None,
        copies: PageCopies | None = None,
    ) -> None:
        self._inbox = Inbox(options)
        self.sessions = SessionTable(options.sessions_live_max, clock, self._inbox.wake)
        """The live sessions. Any thread may hold and release them."""
        self._loop = EngineLoop(
            executor, pool, options, clock, check=check, on_step=on_step, sessions=self.sessions, copies=copies
        )
        self._copies = copies
        self._executor = executor
        self._pages_total = pool.pages_total
        self._limits = limits
        self._options = options
        self._clock = clock
        self._on_events = on_events
        self._on_failed = on_failed
        self._tokens = RateMeter(clock())
        self._requests = RateMeter(clock())
        self._published = (0, 0, 0)  # running requests, used and idle pages; replaced as a whole: readers need no lock
        self._thread = threading.Thread(target=self._run, name="magnitude-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread; requests submitted before then are run first."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queues a request, whose events then come through `on_events`.

        Raises: InvalidRequestError, ContextLengthError and ExhaustedError(KV_CACHE_EXHAUSTED) where it can never run;
        ExhaustedError(QUEUE_FULL) and UnavailableError(DRAINING), with a delay, where it cannot now; the error that
        failed the engine, if one did. After an exception there is no event.
        """
        check_request(request, self._limits, self._options)
        state = RequestState(request, self._limits, self._clock())
        check_pages(state, self._pages_total)
        self._inbox.submit(state)

    def finish(self, request_id: str, choice: int, generated_kept: int) -> None:
        """Ends a choice in whose text a stop was found; what was generated after `generated_kept` tokens is forgotten.

        Its pages are free within a step. A choice that has ended meanwhile is left as it is.
        """
        self._inbox.finish(request_id, choice, generated_kept)

    def abort(self, request_id: str) -> bool:
        """Ends a request with CancelledError, wherever it is, within a step; whether it was there to be ended."""
        return self._inbox.abort(request_id)

    def drain(self, grace_seconds: float) -> None:
        """Takes no new requests. Those that are left after the grace period end: running ones with what they have
        (CANCELLED), waiting ones with UnavailableError."""
        self._inbox.drain(self._clock() + grace_seconds)

    def wait_drained(self, timeout_seconds: float | None = None) -> bool:
        """Waits until `drain` has left nothing; whether that came about in time."""
        return self._inbox.wait_drained(timeout_seconds)

    def stop(self) -> None:
        """Ends all requests as `drain` without grace does, the running step with them, and waits until the thread has
        left."""
        self._inbox.stop()
        self._executor.abort()
        if self._thread.is_alive():
            self._thread.join()

    def export_pages(
        self,
        session: Session,
        target: NDArray[np.uint8],
        on_done: abc.Callable[[MagnitudeError | None], None],
        cache_type: str = "",
    ) -> None:
        """Copies the computed pages of a session that the caller holds into `target`, some between every two steps.
        `on_done` is then called on the engine thread, with an error where the pages cannot be had.

        *Shapes*: target u8 [session.computed * page_token_bytes(cache_type)]. *Raises*: the error that failed the
        engine; UnavailableError after `stop`.
        """
        assert self._copies is not None, "this engine was made without what copies pages"
        self._inbox.export(PageExport(session, self._copies, target, on_done, cache_type))

    def page_token_bytes(self, cache_type: str = "") -> int:
        """Bytes of the pages of one token, in this cache type; 0 where pages cannot be saved."""
        return self._copies.token_bytes(cache_type) if self._copies is not None else 0

    def load(self) -> Load:
        """How busy the engine is now. Takes no lock, so that health can ask whatever goes on."""
        running, pages_used, pages_idle = self._published
        rate = self._tokens.read(self._clock())
        return Load(running, self._inbox.waiting, pages_used, self._pages_total, rate, pages_idle)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            seconds = self._loop.idle_seconds()
            commands = self._inbox.take(seconds > 0, None if seconds == math.inf else seconds)
            is_last = self._inbox.stopped
            try:
                schedule = self._loop.prepare(commands)
                self._inbox.note_waiting(len(self._loop.waiting))
                self._publish()
                events = self._loop.compute(schedule)
                self._settle(events)
            except Exception as error:
                _log.critical("the engine's bookkeeping failed", exc_info=error)
                self._give_up(MagnitudeError("The engine failed.", remedy="Restart the server and report its log."), [])
                return
            if self._loop.failure is not None:
                self._give_up(self._loop.failure, events)
                return
            self._deliver(events)
        self._loop.fail_exports(stopped())

    def _settle(self, events: list[Event]) -> None:
        """Makes what the step changed visible to other threads, before they hear of its events."""
        loop, now = self._loop, self._clock()
        self._tokens.add(loop.tokens_chosen, now)
        loop.tokens_chosen = 0
        ended = [event.request_id for event in events if isinstance(event, RequestFinished)]
        self._requests.add(len(ended), now)
        rate = self._requests.read(now)
        retry_seconds = min(max(1 / rate, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX) if rate else RETRY_SECONDS_MAX
        self._publish()
        self._inbox.settle(ended, len(loop.waiting), retry_seconds)

    def _publish(self) -> None:
        running = len(self._loop.requests) - len(self._loop.waiting)
        pages_used = self._loop.pool.pages_used
        self._published = (running, pages_used, min(self.sessions.idle_pages, pages_used))

    def _give_up(self, error: MagnitudeError, events: list[Event]) -> None:
        """Refuses everything from now on; `events` and the end of whatever is left are the last to be heard."""
        now = self._clock()
        left = self._inbox.fail(error)
        self._loop.fail_exports(error)
        self._published = (0, 0, 0)
        if self._on_failed is not None:
            try:
                self._on_failed(error)
            except Exception:
                _log.exception("the receiver of the engine's failure failed")
        ends = [RequestFinished(state.request.request_id, state.timings(now), error=error) for state in left]
        self._deliver([*events, *ends])

    def _deliver(self, events: list[Event]) -> None:
        if events:
            try:
                self._on_events(events)
            except Exception:
                _log.exception("the receiver of %d events failed", len(events))
