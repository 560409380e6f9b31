"""Where other threads leave what they want of the engine thread. It is bounded: whatever is asked, memory is too.

At most `waiting_max` requests are in here or in the queue behind; everything else is about requests that are known,
at most one abort for each and one finish for each of their choices.
"""

from __future__ import annotations

import threading
from collections import abc

from magnitude_service.errors import ExhaustedError, InvalidRequestError, MagnitudeError, UnavailableError
from magnitude_service.scheduling.engine_loop import Commands
from magnitude_service.scheduling.options import SchedulingOptions
from magnitude_service.scheduling.sequence import RequestState
from magnitude_service.scheduling.session_pages import PageExport


class Inbox:
    """Safe for any thread; `take` and `settle` are the engine thread's alone."""

    def __init__(self, options: SchedulingOptions) -> None:
        self._options = options
        self._changed = threading.Condition()  # guards everything below
        self._commands = Commands()
        self._known: dict[str, RequestState] = {}
        self._queued = 0
        self._retry_after_seconds = 1.0
        self._failure: MagnitudeError | None = None
        self._stopped = False
        self._drained = threading.Event()

    @property
    def waiting(self) -> int:
        """Requests that are submitted and not yet admitted, ended ones apart; never too small."""
        return self._queued

    @property
    def stopped(self) -> bool:
        """Whether the engine thread is to leave after one more step."""
        return self._stopped

    def submit(self, state: RequestState) -> None:
        """Queues a request, or raises what forbids it."""
        request_id = state.request.request_id
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._commands.drain_at is not None:
                raise UnavailableError(
                    "The server is shutting down and takes no new requests.",
                    remedy="Send it again, to another server where there is one.",
                    reason="DRAINING",
                    retry_after_seconds=1.0,
                )
            if request_id in self._known:
                raise InvalidRequestError(
                    f"Request id {request_id!r} is already running.",
                    remedy="Use a new id for each request, or leave it out.",
                )
            if self._queued >= self._options.waiting_max:
                raise ExhaustedError(
                    f"{self._queued} requests are waiting, and the queue holds {self._options.waiting_max}.",
                    remedy="Send it again later, or to another server.",
                    reason="QUEUE_FULL",
                    retry_after_seconds=self._retry_after_seconds,
                    waiting_max=self._options.waiting_max,
                )
            self._queued += 1
            self._known[request_id] = state
            self._commands.submitted.append(state)
            self._changed.notify()

    def finish(self, request_id: str, choice: int, generated_kept: int) -> None:
        """Ends a choice; one that is not known (any more) has ended already."""
        with self._changed:
            state = self._known.get(request_id)
            if state is not None:
                assert 0 <= choice < len(state.sequences), f"choice {choice} of {len(state.sequences)}"
                self._commands.finished[request_id, choice] = generated_kept
                self._changed.notify()

    def abort(self, request_id: str) -> bool:
        """Ends a request; whether it was there."""
        with self._changed:
            known = request_id in self._known
            if known:
                self._commands.aborted.add(request_id)
                self._changed.notify()
            return known

    def export(self, export: PageExport) -> None:
        """Asks for pages of a session. *Raises*: what failed the engine; UnavailableError once it has stopped."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._stopped:
                raise stopped()
            self._commands.exports.append(export)
            self._changed.notify()

    def wake(self) -> None:
        """Lets the engine thread look at sessions again."""
        with self._changed:
            self._commands.woken = True
            self._changed.notify()

    def drain(self, at: float) -> None:
        """Takes no new requests, and ends those that are left at time `at`. An earlier `at` than before counts."""
        with self._changed:
            before = self._commands.drain_at
            self._commands.drain_at = at if before is None else min(at, before)
            self._note_drained()
            self._changed.notify()

    def stop(self) -> None:
        """Ends everything now, and lets the engine thread leave."""
        with self._changed:
            self._stopped = True
            self._commands.drain_at = float("-inf")
            self._changed.notify()

    def wait_drained(self, timeout_seconds: float | None) -> bool:
        """Waits until no request is left after `drain`; whether that came about in time."""
        return self._drained.wait(timeout_seconds)

    def take(self, wait: bool, timeout_seconds: float | None = None) -> Commands:
        """What was asked since the last call; with `wait`, sleeps until something is, or the time is over."""
        with self._changed:
            if wait and not self._stopped:
                self._changed.wait_for(lambda: self._stopped or self._has_commands(), timeout_seconds)
            taken, self._commands = self._commands, Commands(drain_at=self._commands.drain_at)
            return taken

    def note_waiting(self, waiting: int) -> None:
        """Tells how many requests a step that now begins leaves waiting."""
        with self._changed:
            self._queued = waiting + len(self._commands.submitted)

    def settle(self, ended: abc.Collection[str], waiting: int, retry_after_seconds: float) -> None:
        """Tells what a step has ended and left waiting, before its events are handed over.

        What was asked about an ended request meanwhile is dropped: a new one may have the same id.
        """
        with self._changed:
            commands = self._commands
            for request_id in ended:
                for sequence in self._known.pop(request_id).sequences:
                    commands.finished.pop((request_id, sequence.choice), None)
                commands.aborted.discard(request_id)
            self._queued = waiting + len(commands.submitted)
            self._retry_after_seconds = retry_after_seconds
            self._note_drained()

    def fail(self, error: MagnitudeError) -> list[RequestState]:
        """Takes no new requests for good; those that are left, which are then forgotten."""
        with self._changed:
            self._failure = error
            left = list(self._known.values())
            self._known, self._queued = {}, 0
            for export in self._commands.exports:
                export.on_done(error)
            self._commands = Commands(drain_at=self._commands.drain_at)
            self._note_drained()
            return left

    def _has_commands(self) -> bool:
        commands = self._commands
        return bool(commands.submitted or commands.finished or commands.aborted or commands.exports or commands.woken)

    def _note_drained(self) -> None:
        if self._commands.drain_at is not None and not self._known:
            self._drained.set()


def stopped() -> MagnitudeError:
    """What an export hears that comes too late."""
    return UnavailableError(
        "The server has stopped computing; key/value pages can no longer be read.",
        remedy="Save without pages, or ask again when the server is back.",
        reason="ENGINE_STOPPED",
    )
