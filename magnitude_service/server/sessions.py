"""Live sessions as the servicers use them: held for a call, brought back where they are not live, saved, let go.

Whatever outlives its call (a save whose caller has gone away) is a task of its own; nothing is left held.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mmap
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import (
    ExhaustedError,
    MagnitudeError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from magnitude_service.scheduling.session import Session
from magnitude_service.server.health import MemoryReport
from magnitude_service.server.served_models import ModelDescription, PageDescription, Runtime, ServedModel
from magnitude_service.server.session_messages import RECOMPUTED, Restored, restored, state_header
from magnitude_service.server.state_store import SavedState, SaveOptions, StateManager, StateStore
from magnitude_service.server.text_workers import TextWorkers

EXPORT_BYTES_AT_ONCE = 256 << 20
"""Copies of pages on their way to disk, all together; a single larger one waits until it is alone."""

ENGINE_STOPPED = "ENGINE_STOPPED"

Result = TypeVar("Result")

logger = logging.getLogger("magnitude.server")


class Sessions:
    """Of all models of a server. Lives on its event loop; `workers` do what blocks."""

    def __init__(self, workers: TextWorkers, memory: Callable[[], MemoryReport]) -> None:
        self._workers = workers
        self._memory = memory
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_exporting = False
        self._copied_bytes = 0
        self._copied_less = asyncio.Condition()

    async def hold(self, model: ServedModel, session_id: str, holder: str) -> Session:
        """The session, held; brought back from its latest version, or begun, where it is not live.

        *Raises*: UnavailableError (SESSION_BUSY); ExhaustedError (SESSIONS_EXHAUSTED); whatever `restored` and the
        store raise.
        """
        description, runtime = model.open()
        table = runtime.engine.sessions
        if table.is_live(session_id):
            return table.hold(session_id, holder)
        with table.reserved(session_id, holder):
            found = await self._workers.run(self._latest, model, session_id, description, runtime)
            if found is None:
                return table.add(Session(session_id, begin_seconds=int(time.time())), holder)
            version, reason = found.session.version, found.reason or "bit-exact"
            logger.info("session %s is resumed from version %d: %s", session_id, version, reason)
            return table.add(found.session, holder)

    def release(self, runtime: Runtime, session: Session) -> None:
        """Lets a session go."""
        runtime.engine.sessions.release(session)

    @asynccontextmanager
    async def pages(
        self, runtime: Runtime, session: Session, cache_type: str
    ) -> AsyncIterator[NDArray[np.uint8] | None]:
        """The computed pages of a held session in canonical form of a cache type; None where there are none at hand.

        *Raises*: ExhaustedError (MEMORY_EXHAUSTED) where a copy has no room; what failed the engine.
        """
        saved = session.saved_pages
        if session.computed == 0 and saved is not None and saved.cache_type == cache_type:
            yield saved.content
            return
        wanted = session.computed * runtime.engine.page_token_bytes(cache_type)
        if not wanted:
            yield None
            return
        async with self._room_for(wanted):
            target = np.frombuffer(mmap.mmap(-1, wanted), np.uint8)
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def finish(error: MagnitudeError | None) -> None:
                if done.done():
                    return
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

            runtime.engine.export_pages(session, target, lambda error: call_on(loop, finish, error), cache_type)
            await done
            yield target

    @asynccontextmanager
    async def live_export(self, model: ServedModel) -> AsyncIterator[None]:
        """One caller at a time may hold a copy of a live session for as long as it reads.

        *Raises*: UnavailableError (EXPORT_BUSY) while another one does.
        """
        if self._is_exporting:
            raise UnavailableError(
                f"Another caller reads a live session of {model.name}.",
                remedy="Ask again when that is over, or save the session and export the version.",
                reason="EXPORT_BUSY",
                retry_after_seconds=1.0,
            )
        self._is_exporting = True
        try:
            yield
        finally:
            self._is_exporting = False

    async def save(self, model: ServedModel, session: Session, options: SaveOptions) -> snapshot_pb2.Snapshot:
        """Saves a held session as a new version; without pages where the engine has stopped meanwhile. When it returns,
        the version lasts. Raises what the store raises."""
        description, runtime, pages, store = self.parts(model)
        manager = await self._workers.run(store.writer)
        cache_type = options.pages_type or pages.cache_type
        if not options.keeps_pages:
            return await self._write(manager, model, session, options, (description, pages), None)
        try:
            async with self.pages(runtime, session, cache_type) as content:
                return await self._write(manager, model, session, options, (description, pages), content)
        except UnavailableError as error:
            if error.reason != ENGINE_STOPPED:
                raise
        return await self._write(manager, model, session, options, (description, pages), None)

    async def prepare_to_save(self, model: ServedModel) -> None:
        """Raises what would keep the model's sessions from being saved, before anything is computed for one."""
        await self._workers.run(self.parts(model)[3].writer)

    async def save_and_release(
        self, model: ServedModel, session: Session, options: SaveOptions
    ) -> snapshot_pb2.Snapshot:
        """The same; whatever comes, the session is let go."""
        _, runtime, _, _ = self.parts(model)
        try:
            return await self.save(model, session, options)
        finally:
            self.release(runtime, session)

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """A task that nobody need wait for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` returns or raises; it goes on to its end also when the caller goes away."""
        return await asyncio.shield(self.start(work))

    async def settle(self) -> None:
        """Waits for all that runs by itself."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def parts(self, model: ServedModel) -> tuple[ModelDescription, Runtime, PageDescription, StateStore]:
        """What saving and restoring need; a model that drains still saves."""
        if model.description is None or model.runtime is None:
            model.open()
        description, runtime = model.description, model.runtime
        assert description is not None, "an open model is described"
        assert runtime is not None, "an open model has a runtime"
        if runtime.pages is None or runtime.states is None:
            raise PreconditionError(
                f"Model {model.name} has no store of sessions.",
                remedy="Serve it with --state sidecar.",
                model=model.name,
            )
        return description, runtime, runtime.pages, runtime.states

    def _latest(
        self, model: ServedModel, session_id: str, description: ModelDescription, runtime: Runtime
    ) -> Restored | None:
        """The latest version of a session; None where none was saved. Blocks."""
        if runtime.states is None or runtime.pages is None:
            return None
        manager = runtime.states.reader()
        if manager is None:
            return None
        try:
            saved = manager.restore(session_id)
        except NotFoundError:
            return None
        return restored(saved, session_id, model, description, runtime.pages, RECOMPUTED)

    async def _write(
        self,
        manager: StateManager,
        model: ServedModel,
        session: Session,
        options: SaveOptions,
        described: tuple[ModelDescription, PageDescription],
        content: NDArray[np.uint8] | None,
    ) -> snapshot_pb2.Snapshot:
        pages_type = "" if content is None else options.pages_type or described[1].cache_type
        header = state_header(session, model, *described, pages_type)
        describe_step(header.snapshot, options)
        agent_state, parts = options.agent_state, None
        if agent_state is not None:
            header.snapshot.agent_state_sha256 = await self._workers.run(digest_of, agent_state)
        elif session.origin is not None:
            original = await self._workers.run(original_of, manager, session)
            agent_state, parts = original.agent_state, original.parts
            header.snapshot.agent_state_sha256 = original.snapshot.agent_state_sha256
        snapshot = await self._workers.run(
            manager.save,
            header,
            agent_state=agent_state,
            parts=parts,
            key_value=content,
            expected_version=options.expected_version,
        )
        session.version, session.is_saved, session.origin = snapshot.version, True, None
        return snapshot

    @asynccontextmanager
    async def _room_for(self, wanted: int) -> AsyncIterator[None]:
        """Waits until a copy of so many bytes has room beside the others."""
        async with self._copied_less:
            await self._copied_less.wait_for(
                lambda: self._copied_bytes == 0 or self._copied_bytes + wanted <= EXPORT_BYTES_AT_ONCE
            )
            available = self._memory().available_bytes
            if wanted > available:
                raise ExhaustedError(
                    f"A copy of the session's pages takes {wanted:,} bytes; {available:,} may be spent.",
                    remedy="Save with CACHE_RETENTION_NONE, or give the server more memory.",
                    reason="MEMORY_EXHAUSTED",
                    needed_bytes=wanted,
                    available_bytes=available,
                )
            self._copied_bytes += wanted
        try:
            yield
        finally:
            async with self._copied_less:
                self._copied_bytes -= wanted
                self._copied_less.notify_all()

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), MagnitudeError):
            logger.debug("a session's work ended with %s", error.reason)


def call_on(loop: asyncio.AbstractEventLoop, work: Callable[[Any], None], argument: object) -> None:
    """Calls `work` on the loop, from any thread; not at all where the loop is gone."""
    try:
        loop.call_soon_threadsafe(work, argument)
    except RuntimeError:
        return  # closed: nobody is left to hear


def digest_of(content: Any) -> bytes:
    """SHA-256 of whatever has bytes."""
    return hashlib.sha256(content).digest()


def original_of(manager: StateManager, session: Session) -> SavedState:
    """The version that a session is a copy of, with the application's bytes. Blocks. *Raises*: PreconditionError
    (AGENT_STATE_DELETED) where it is no more."""
    assert session.origin is not None, "a copy has an original"
    name, version = session.origin
    try:
        return manager.restore(name, version)
    except NotFoundError as error:
        raise PreconditionError(
            f"Session {session.session_id} is a copy of version {version} of session {name}; that was deleted, and the "
            "application's bytes with it.",
            remedy="Save it with an agent_state, empty if there is none.",
            reason="AGENT_STATE_DELETED",
            session_id=session.session_id,
            original_session_id=name,
            original_version=version,
        ) from error


def describe_step(snapshot: snapshot_pb2.Snapshot, options: SaveOptions) -> None:
    """Labels and the agent's step, as the caller gave them."""
    snapshot.labels.update(options.labels)
    snapshot.step_name = options.step_name
    if options.step_number is not None:
        snapshot.step_number = options.step_number
