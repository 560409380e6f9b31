"""SnapshotService: saves sessions, brings them back, and tells about what is saved. Streams are state_streams.py's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from google.protobuf.message import Message

from magnitude.v1 import snapshot_pb2, snapshot_pb2_grpc
from magnitude_service.errors import IntegrityError, NotFoundError
from magnitude_service.server import bounds, convert, limits, state_bytes, state_streams
from magnitude_service.server.malformed import refuse_malformed
from magnitude_service.server.request_log import note
from magnitude_service.server.served_models import ServedModel, ServedModels
from magnitude_service.server.session_messages import Restored, restored
from magnitude_service.server.sessions import Sessions
from magnitude_service.server.state_import import StateImport
from magnitude_service.server.state_store import SavedState, StateManager
from magnitude_service.server.text_workers import TextWorkers


class SnapshotServicer(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Serves every model's store. What waits for a disk runs on `storage`."""

    def __init__(self, models: ServedModels, sessions: Sessions, storage: TextWorkers) -> None:
        self._models = models
        self._sessions = sessions
        self._storage = storage

    async def Save(self, request: snapshot_pb2.SaveRequest, context: Any) -> snapshot_pb2.SaveResponse:
        """Saves a live session; a caller that goes away does not stop it."""
        model = self._model(request)
        session_id = convert.checked_session_id(request.session_id, "session_id")
        options = convert.save_options(request)
        runtime = self._sessions.parts(model)[1]
        session = runtime.engine.sessions.hold(session_id, "a save")
        snapshot = await self._sessions.finish(self._sessions.save_and_release(model, session, options))
        note(session_id=session_id, version=snapshot.version)
        return snapshot_pb2.SaveResponse(snapshot=snapshot)

    async def Restore(self, request: snapshot_pb2.RestoreRequest, context: Any) -> snapshot_pb2.RestoreResponse:
        """Makes a live session of a version. Its pages are loaded at its next use."""
        begin = time.monotonic()
        model = self._model(request)
        name, version = reference(request.snapshot)
        live_name = convert.checked_session_id(request.session_id or name, "session_id")
        table = self._sessions.parts(model)[1].engine.sessions
        with table.reserved(live_name, "a restore"):
            saved, found = await self._storage.run(
                self._restored, model, name, version, live_name, request.fidelity_min
            )
            found.session.is_saved &= version is None  # else a request might bring back a later one in its place
            table.release(table.add(found.session, "a restore"))
        is_omitted = is_too_large_inline(saved)
        note(session_id=live_name, version=saved.snapshot.version)
        return snapshot_pb2.RestoreResponse(
            snapshot=saved.snapshot,
            session_id=live_name,
            fidelity=found.fidelity,
            reason=found.reason,
            recomputed_tokens=found.recomputed_tokens,
            agent_state=b"" if is_omitted else saved.agent_state.tobytes(),
            agent_state_omitted=is_omitted,
            restore_ms=(time.monotonic() - begin) * 1_000,
        )

    async def Get(  # type: ignore[override]  # bytes are the message, encoded already
        self, request: snapshot_pb2.GetRequest, context: Any
    ) -> snapshot_pb2.GetResponse | bytes:
        """One version."""
        model = self._model(request)
        name, version = reference(request.snapshot)

        def get() -> snapshot_pb2.GetResponse | bytes:
            manager = self._reader(model, name)
            if not request.return_agent_state:
                return snapshot_pb2.GetResponse(snapshot=manager.get(name, version))
            saved = manager.restore(name, version)
            if is_too_large_inline(saved):
                return snapshot_pb2.GetResponse(snapshot=saved.snapshot, agent_state_omitted=True)
            return state_bytes.get_response(saved.snapshot, saved.agent_state)

        return await self._storage.run(get)

    async def List(self, request: snapshot_pb2.ListRequest, context: Any) -> snapshot_pb2.ListResponse:
        """Many versions."""
        model = self._model(request)
        if request.session_id:
            convert.checked_session_id(request.session_id, "session_id")
        size = request.page_size if request.HasField("page_size") else limits.LIST_PAGE_DEFAULT
        bounds.number("page_size", size, 1, limits.LIST_PAGE_MAX)
        bounds.count("labels", len(request.labels), limits.LABELS_MAX)

        def found() -> snapshot_pb2.ListResponse:
            manager = self._sessions.parts(model)[3].reader()
            if manager is None:
                return snapshot_pb2.ListResponse()
            page = manager.list(
                request.session_id,
                labels=dict(request.labels),
                all_versions=request.all_versions,
                page_size=size,
                page_token=request.page_token,
            )
            return snapshot_pb2.ListResponse(snapshots=page.snapshots, next_page_token=page.next_page_token)

        return await self._storage.run(found)

    async def Delete(self, request: snapshot_pb2.DeleteRequest, context: Any) -> snapshot_pb2.DeleteResponse:
        """Deletes versions; all of them, and the live session ends."""
        model = self._model(request)
        name = convert.checked_session_id(request.session_id, "session_id")
        bounds.count("versions", len(request.versions), limits.DELETED_VERSIONS_MAX)
        table = self._sessions.parts(model)[1].engine.sessions

        async def delete() -> snapshot_pb2.DeleteResponse:
            if request.versions:
                return await self._storage.run(self._deleted, model, name, list(request.versions), False)
            with table.reserved(name, "a delete"):
                response = await self._storage.run(self._deleted, model, name, [], table.is_live(name))
                table.end(name)  # not where it fails: then nothing has changed
                return response

        return await self._sessions.finish(delete())

    async def Compact(self, request: snapshot_pb2.CompactRequest, context: Any) -> snapshot_pb2.CompactResponse:
        """Gives back the bytes of deleted versions."""
        model = self._model(request)
        keep = None
        if request.HasField("keep_versions"):
            keep = int(bounds.number("keep_versions", request.keep_versions, 1, 2**32 - 1))
        store = self._sessions.parts(model)[3]

        def compact() -> snapshot_pb2.CompactResponse:
            if store.reader() is None:
                return snapshot_pb2.CompactResponse()
            done = store.writer().compact(keep, dry_run=request.dry_run)
            return snapshot_pb2.CompactResponse(
                bytes_before=done.bytes_before, bytes_after=done.bytes_after, dropped_versions=done.dropped_versions
            )

        return await self._sessions.finish(self._storage.run(compact))

    async def ExportState(  # type: ignore[override]  # as Get
        self, request: snapshot_pb2.ExportStateRequest, context: Any
    ) -> AsyncIterator[snapshot_pb2.ExportStateResponse | bytes]:
        """Sends a version, or a live session."""
        model = self._model(request)
        with_pages = request.cache_retention != snapshot_pb2.CACHE_RETENTION_NONE
        source = request.WhichOneof("source")
        if source is None:
            bounds.refuse("source", "absent", "snapshot or live_session_id", "Name a version or a live session.")
        if source == "snapshot":
            name, version = reference(request.snapshot)
            saved = await self._storage.run(self._saved, model, name, version)
            content = saved.key_value if with_pages else None
            header = state_streams.header_of(saved, content is not None)
            known = saved.piece_checksums
            async for part in state_streams.parts(self._storage, header, saved.agent_state, content, known):
                yield part
            return
        name = convert.checked_session_id(request.live_session_id, "live_session_id")
        async for part in state_streams.live_parts(self._sessions, self._storage, model, name, with_pages):
            yield part

    async def ImportState(
        self, request: AsyncIterable[snapshot_pb2.ImportStateRequest], context: Any
    ) -> snapshot_pb2.ImportStateResponse:
        """Takes a version, or an agent state for a live session."""
        incoming = StateImport(self._models, self._sessions, self._storage)
        try:
            async for message in request:
                refuse_malformed(message, "")
                await incoming.take(message)
            snapshot = await incoming.commit()
        finally:
            incoming.close()
        note(session_id=snapshot.session_id, version=snapshot.version)
        return snapshot_pb2.ImportStateResponse(snapshot=snapshot)

    def _model(self, request: Message) -> ServedModel:
        """The model that a request names, when all its text is well formed."""
        refuse_malformed(request, "")
        model = self._models.find(request.model)  # type: ignore[attr-defined]
        note(model=model.name)
        return model

    def _reader(self, model: ServedModel, session_id: str) -> StateManager:
        """What reads the model's store. Raises NotFoundError where nothing was ever saved. Blocks."""
        manager = self._sessions.parts(model)[3].reader()
        if manager is None:
            raise NotFoundError(
                f"There is no saved session {session_id}: nothing was saved yet.",
                remedy="Save it first; or name the model whose sessions it is among.",
                reason="SESSION_NOT_FOUND",
                session_id=session_id,
            )
        return manager

    def _deleted(
        self, model: ServedModel, session_id: str, versions: list[int], is_live: bool
    ) -> snapshot_pb2.DeleteResponse:
        """Deletes versions, which a live session that ends need not have. Blocks."""
        _, runtime, _, store = self._sessions.parts(model)
        try:
            with contextlib.suppress(IntegrityError):  # what is damaged can be deleted
                self._reader(model, session_id).get(session_id)
        except NotFoundError:
            if is_live:  # it was never saved
                return snapshot_pb2.DeleteResponse()
            raise
        count, size = store.writer().delete(session_id, versions)
        runtime.engine.sessions.note_deleted(session_id)
        return snapshot_pb2.DeleteResponse(deleted_versions=count, reclaimable_bytes=size)

    def _saved(self, model: ServedModel, session_id: str, version: int | None) -> SavedState:
        return self._reader(model, session_id).restore(session_id, version)

    def _restored(
        self, model: ServedModel, name: str, version: int | None, live_name: str, fidelity_min: int
    ) -> tuple[SavedState, Restored]:
        """A version, and the session that is made of it. Blocks."""
        description, _, pages, _ = self._sessions.parts(model)
        saved = self._saved(model, name, version)
        return saved, restored(saved, live_name, model, description, pages, fidelity_min)


def reference(message: snapshot_pb2.SnapshotReference) -> tuple[str, int | None]:
    """Session and version that a request names."""
    name = convert.checked_session_id(message.session_id, "snapshot.session_id")
    return name, message.version if message.HasField("version") else None


def is_too_large_inline(saved: SavedState) -> bool:
    """Whether the application's bytes are left out of an answer."""
    return saved.agent_state.nbytes > limits.AGENT_STATE_INLINE_BYTES_MAX
