"""The engine thread's care for pages of sessions, between steps: gives idle ones back, loads saved ones, exports.

While answers are being generated only a few pages are copied between two steps, so that no stream stands still; a page
takes 0.15 ms (737,280 bytes, AMD EPYC, 2026-11-29).
"""

from __future__ import annotations

import math
from collections import abc

import numpy as np
from numpy.typing import NDArray

from magnitude_service.allocator.pages import PagePool, pages_for
from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.canonical_pages import PageCopies
from magnitude_service.errors import MagnitudeError
from magnitude_service.scheduling.options import SchedulingOptions
from magnitude_service.scheduling.policy import admit, pages_short, to_strip
from magnitude_service.scheduling.sequence import RequestState, Sequence
from magnitude_service.scheduling.session import NO_PAGES, Session
from magnitude_service.scheduling.session_table import SessionTable, taken

COPIES_WHILE_DECODING = 8
COPIES_MAX = 128


class PageExport:
    """Copies the computed pages of a held session into `target`, some at a time; then calls `on_done`, with an error
    where they could not be copied. What is copied of a session that was let go meanwhile is worth nothing.

    *Shapes*: target u8 [computed tokens * bytes of a position in `cache_type`; "": the cache's own].
    """

    def __init__(
        self,
        session: Session,
        copies: PageCopies,
        target: NDArray[np.uint8],
        on_done: abc.Callable[[MagnitudeError | None], None],
        cache_type: str = "",
    ) -> None:
        self._token_bytes = copies.token_bytes(cache_type)
        assert target.nbytes == session.computed * self._token_bytes, "the target is for another number of tokens"
        self.on_done = on_done
        self._pages, self._tokens = session.pages, session.computed
        self._copies, self._target, self._cache_type = copies, target, cache_type
        self._done = 0

    @property
    def is_done(self) -> bool:
        """Whether all is copied."""
        return self._done == self._tokens

    def advance(self, pages: int) -> int:
        """Copies at most so many pages; returns how many it copied."""
        first = self._done // PAGE_TOKENS
        ids = self._pages[first : min(first + pages, pages_for(self._tokens))]
        for page in ids.tolist():
            tokens = min(PAGE_TOKENS, self._tokens - self._done)
            begin = self._done * self._token_bytes
            target = self._target[begin : begin + tokens * self._token_bytes]
            self._copies.export(page, tokens, target, self._cache_type)
            self._done += tokens
        return int(ids.size)


class SessionPages:
    """Part of an EngineLoop; see the module."""

    def __init__(
        self, pool: PagePool, table: SessionTable, copies: PageCopies | None, options: SchedulingOptions
    ) -> None:
        self.exports: list[PageExport] = []
        self._pool, self._table, self._copies, self._options = pool, table, copies, options
        self._next_look = 0.0

    def make_room(self, running: abc.Sequence[Sequence], waiting: abc.Sequence[RequestState], now: float) -> None:
        """Gives back pages of sessions that are no more, that are idle for long, or whose pages a request lacks."""
        for pages in self._table.take_orphaned():
            self._pool.free(pages)
        places = self._options.sequences_max - len(running)
        short = pages_short(waiting, places, self._pool.pages_free)
        if short or now >= self._next_look:
            self._strip_idle(short, now)
        if waiting and not running and not admit(waiting, places, self._pool.pages_free):
            self._strip_waiting(waiting)

    def next_expiry(self) -> float:
        """When the longest idle session loses its pages; infinity where none has any."""
        idle = self._table.idle()
        return idle[0].used_seconds + self._options.session_pages_seconds if idle else math.inf

    def copy(self, running: abc.Sequence[Sequence]) -> bool:
        """Loads and exports some pages; whether there was anything to copy."""
        is_decoding = any(sequence.is_decoding for sequence in running)
        left = budget = COPIES_WHILE_DECODING if is_decoding else COPIES_MAX
        for sequence in running:
            if sequence.loading is not None and left > 0:
                left -= self._load(sequence, left)
        while self.exports and left > 0:
            export = self.exports[0]
            left -= export.advance(left)
            if export.is_done:
                self.exports.pop(0).on_done(None)
                left -= 1  # an empty one counts too
        return left < budget

    def fail(self, error: MagnitudeError) -> None:
        """Ends all exports."""
        for export in self.exports:
            export.on_done(error)
        self.exports = []

    def hand_over(self, state: RequestState) -> NDArray[np.int32]:
        """The pages of a session, for its request that is admitted; what that has no use for goes back to the pool."""
        session, [sequence] = state.session, state.sequences
        assert session is not None, "only a session has pages"
        pages, session.pages, session.computed = session.pages, NO_PAGES, 0
        self._pool.free(pages[sequence.pages_max :])
        return pages[: sequence.pages_max]

    def take_back(self, sequence: Sequence) -> None:
        """The session of a request that has ended gets the pages that are computed, the pool the others."""
        session = sequence.state.session
        assert session is not None, "only a session keeps pages"
        session.tokens = sequence.tokens[: sequence.length].copy()
        session.computed = min(sequence.computed, max(sequence.length - 1, 0))
        kept = 0 if sequence.loading is not None else pages_for(session.computed)
        session.pages = sequence.pages[:kept] if kept else NO_PAGES
        if sequence.loading is None:
            session.saved_pages = None
        self._pool.free(sequence.pages[kept:])

    def _load(self, sequence: Sequence, pages: int) -> int:
        """Loads at most so many pages of a session that was restored; returns how many."""
        saved = sequence.loading
        assert saved is not None, "there is nothing to load"
        assert self._copies is not None, "pages are loaded where they can be copied"
        first = sequence.loaded // PAGE_TOKENS
        ids = sequence.pages[first : min(first + pages, pages_for(saved.tokens))]
        position_bytes = saved.content.nbytes // max(saved.tokens, 1)
        for page in ids.tolist():
            tokens = min(PAGE_TOKENS, saved.tokens - sequence.loaded)
            begin = sequence.loaded * position_bytes
            self._copies.load(page, tokens, saved.content[begin : begin + tokens * position_bytes], saved.cache_type)
            sequence.loaded += tokens
        if sequence.loaded == saved.tokens:
            sequence.end_loading()
        return int(ids.size)

    def _strip_idle(self, short: int, now: float) -> None:
        """Idle for long, or needed. Who is let go after this look is idle for long only so many seconds later."""
        for session in to_strip(self._table.idle(), short, now - self._options.session_pages_seconds):
            self._pool.free(self._table.strip(session))
        self._next_look = min(self.next_expiry(), now + self._options.session_pages_seconds)

    def _strip_waiting(self, waiting: abc.Sequence[RequestState]) -> None:
        """Nothing runs, and the first of those that wait lacks pages that the sessions of later ones have."""
        for state in reversed(waiting[1:]):
            if state.session is not None and state.session.pages.size:
                self._pool.free(taken(state.session))
                state.resume()
            if admit(waiting, self._options.sequences_max, self._pool.pages_free):
                return
