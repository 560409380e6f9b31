"""Which sessions are live, and who holds which of them. Any thread may ask; a lock guards the table."""

from __future__ import annotations

import contextlib
import threading
from collections import abc

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import ExhaustedError, NotFoundError, UnavailableError
from magnitude_service.scheduling.session import NO_PAGES, Session

BUSY_RETRY_SECONDS = 0.5


class SessionTable:
    """Live sessions by id, least recently used first.

    `wake` is called whenever the engine thread may have something to do: pages of sessions that are no more, or a
    session whose pages it may take now. `sessions_max` sessions are live at most; for one more, the least recently used
    one that nobody holds and that is wholly saved ends.
    """

    def __init__(self, sessions_max: int, clock: abc.Callable[[], float], wake: abc.Callable[[], None]) -> None:
        self._sessions_max = sessions_max
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()  # guards all below, holders, and pages of sessions that nobody holds
        self._sessions: dict[str, Session] = {}
        self._reserved: dict[str, str] = {}
        self._orphaned: list[NDArray[np.int32]] = []
        self.idle_pages = 0
        """Pages of sessions that nobody holds: whoever lacks pages gets them. Any thread may read it."""

    def __len__(self) -> int:
        return len(self._sessions)

    def is_live(self, session_id: str) -> bool:
        """Whether there is such a session now."""
        return session_id in self._sessions

    @contextlib.contextmanager
    def reserved(self, session_id: str, holder: str) -> abc.Iterator[None]:
        """Meanwhile nobody else holds the session, live or not, or reserves it. *Raises*: UnavailableError
        (SESSION_BUSY) where somebody does."""
        with self._lock:
            self._require_free(session_id, self._holder(session_id))
            self._reserved[session_id] = holder
        try:
            yield
        finally:
            with self._lock:
                del self._reserved[session_id]

    def hold(self, session_id: str, holder: str) -> Session:
        """The live session, held. *Raises*: NotFoundError (SESSION_NOT_FOUND); UnavailableError (SESSION_BUSY) while
        somebody else holds it or has reserved it."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise not_live(session_id)
            self._require_free(session_id, self._holder(session_id))
            session.holder = holder
            self.idle_pages -= int(session.pages.size)
            return session

    def add(self, session: Session, holder: str) -> Session:
        """Makes a session live, held; it takes the place of one of the same name. Whoever had to wait for what it is
        made of has reserved the name since.

        *Raises*: UnavailableError (SESSION_BUSY) where somebody holds that one; ExhaustedError (SESSIONS_EXHAUSTED).
        """
        with self._lock:
            old = self._sessions.get(session.session_id)
            if old is not None:
                self._require_free(session.session_id, old.holder)
                self._end(old)
            elif len(self._sessions) >= self._sessions_max:
                self._end(self._superfluous())
            session.holder = holder
            session.used_seconds = self._clock()
            self._sessions[session.session_id] = session
        self._wake()
        return session

    def end(self, session_id: str) -> None:
        """Ends the live session of this name, which nobody holds, where there is one."""
        with self._lock:
            if (session := self._sessions.get(session_id)) is not None:
                self._end(session)
        self._wake()

    def release(self, session: Session) -> None:
        """Its holder is done. A session that came to nothing ends."""
        with self._lock:
            session.holder = ""
            session.used_seconds = self._clock()
            del self._sessions[session.session_id]
            if session.tokens.size or session.version:
                self._sessions[session.session_id] = session  # now the most recently used one
                self.idle_pages += int(session.pages.size)
            else:
                self._orphan(session)
        self._wake()

    def note_deleted(self, session_id: str) -> None:
        """Some versions of a session are no more: it may not be ended for another one until it is saved again."""
        with self._lock:
            if session_id in self._sessions:
                self._sessions[session_id].is_saved = False

    def idle(self) -> list[Session]:
        """Sessions that nobody holds and that have pages, or saved ones at hand, least recently used first."""
        with self._lock:
            return [
                session
                for session in self._sessions.values()
                if not session.holder and (session.pages.size or session.saved_pages is not None)
            ]

    def strip(self, session: Session) -> NDArray[np.int32]:
        """Takes the pages of a session; none where somebody has come to hold it meanwhile."""
        with self._lock:
            if session.holder:
                return NO_PAGES
            self.idle_pages -= int(session.pages.size)
            return taken(session)

    def take_orphaned(self) -> list[NDArray[np.int32]]:
        """Pages of sessions that are no more, to be given back."""
        with self._lock:
            found, self._orphaned = self._orphaned, []
            return found

    def _holder(self, session_id: str) -> str:
        session = self._sessions.get(session_id)
        return self._reserved.get(session_id) or (session.holder if session is not None else "")

    def _require_free(self, session_id: str, holder: str) -> None:
        if holder:
            raise UnavailableError(
                f"Session {session_id} is in use: {holder}.",
                remedy="Ask again when that is over.",
                reason="SESSION_BUSY",
                retry_after_seconds=BUSY_RETRY_SECONDS,
                session_id=session_id,
            )

    def _superfluous(self) -> Session:
        for session in self._sessions.values():
            if session.is_saved and not session.holder:
                return session
        raise ExhaustedError(
            f"{len(self._sessions)} sessions are live, as many as --sessions-live-max allows, and each of them is in "
            "use or has tokens that are not saved.",
            remedy="Save or delete sessions that are done, or raise --sessions-live-max.",
            reason="SESSIONS_EXHAUSTED",
            sessions_live_max=self._sessions_max,
        )

    def _end(self, session: Session) -> None:
        """Of a session that nobody holds."""
        del self._sessions[session.session_id]
        self.idle_pages -= int(session.pages.size)
        self._orphan(session)

    def _orphan(self, session: Session) -> None:
        if (pages := taken(session)).size:
            self._orphaned.append(pages)


def taken(session: Session) -> NDArray[np.int32]:
    """The pages of a session, which then has none: its tokens are computed again when they are needed."""
    pages, session.pages, session.computed, session.saved_pages = session.pages, NO_PAGES, 0, None
    session.rounded_type = ""
    return pages


def not_live(session_id: str) -> NotFoundError:
    """The error of a session that is not live, where only a live one will do."""
    return NotFoundError(
        f"There is no live session {session_id}.",
        remedy="Restore a version of it, or begin it with a request that names it.",
        reason="SESSION_NOT_FOUND",
        session_id=session_id,
    )
