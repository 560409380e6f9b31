"""A state on the wire, from here: header, the application's bytes, pages, end, in messages of at most a mebibyte."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import NotFoundError, UnimplementedError
from magnitude_service.scheduling.session import Session
from magnitude_service.server import limits
from magnitude_service.server.served_models import ServedModel
from magnitude_service.server.session_messages import state_header
from magnitude_service.server.sessions import Sessions, original_of
from magnitude_service.server.state_bytes import export_response
from magnitude_service.server.state_store import SavedState, StateManager
from magnitude_service.server.text_workers import TextWorkers

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIELDS = snapshot_pb2.ExportStateResponse.DESCRIPTOR.fields_by_name

CHUNKS_AHEAD = 2
"""Messages that are made at once; as many more are on their way meanwhile."""

NOTHING: NDArray[np.uint8] = np.empty(0, np.uint8)


def header_of(saved: SavedState, has_pages: bool) -> snapshot_pb2.StateHeader:
    """The header of a saved version. Raises UnimplementedError for one with parts, which the wire has no place for."""
    if saved.parts:
        raise UnimplementedError(
            f"The version holds the named parts {', '.join(sorted(saved.parts))[:200]}, which are not sent yet.",
            remedy="`magnitude state export` reads the file itself.",
        )
    layout = saved.page_layout if has_pages else None
    return snapshot_pb2.StateHeader(snapshot=saved.snapshot, session=saved.session, page_layout=layout)


async def parts(
    workers: TextWorkers,
    header: snapshot_pb2.StateHeader,
    agent_state: NDArray[np.uint8],
    key_value: NDArray[np.uint8] | None,
    checksums: Mapping[str, Sequence[int]],
) -> AsyncIterator[snapshot_pb2.ExportStateResponse | bytes]:
    """All messages of a state; a reader that is slow holds up nobody else. `checksums`: of chunks, where known."""
    yield snapshot_pb2.ExportStateResponse(header=header)
    end = snapshot_pb2.StateEnd()
    known = header.snapshot.agent_state_sha256 if agent_state.nbytes == header.snapshot.agent_state_bytes else b""
    for name, content, sha256 in (
        ("agent_state", agent_state, known),
        ("key_value", NOTHING if key_value is None else key_value, b""),
    ):
        digest = None if sha256 else hashlib.sha256()
        async for message in chunks(workers, FIELDS[name].number, content, digest, checksums.get(name)):
            yield message
        setattr(end, f"{name}_bytes", content.nbytes)
        setattr(end, f"{name}_sha256", digest.digest() if digest else sha256)
    yield snapshot_pb2.ExportStateResponse(end=end)


async def chunks(
    workers: TextWorkers,
    number: int,
    content: NDArray[np.uint8],
    digest: hashlib._Hash | None,
    checksums: Sequence[int] | None = None,
) -> AsyncIterator[bytes]:
    """Messages with all bytes of a content, some made while those before are on their way; adds them to the digest."""

    if digest is None:
        for at in range(0, content.nbytes, limits.CHUNK_BYTES_MAX):
            yield chunk(number, content, at, checksums)
        return

    def start(begin: int) -> asyncio.Task[list[bytes]]:
        return asyncio.create_task(workers.run(encoded, number, content, begin, digest, checksums))

    begins = range(0, content.nbytes, limits.CHUNK_BYTES_MAX * CHUNKS_AHEAD)
    following = start(0) if begins else None
    try:
        for begin in begins:
            assert following is not None, "one is made for each beginning"
            messages = await following
            following = start(begin + begins.step) if begin != begins[-1] else None
            for message in messages:
                yield message
    finally:
        if following is not None:
            following.cancel()


def encoded(
    number: int, content: NDArray[np.uint8], begin: int, digest: hashlib._Hash, checksums: Sequence[int] | None
) -> list[bytes]:
    """The next few messages. Blocks."""
    end = min(begin + limits.CHUNK_BYTES_MAX * CHUNKS_AHEAD, content.nbytes)
    digest.update(content[begin:end].data)
    offsets = range(begin, end, limits.CHUNK_BYTES_MAX)
    return [chunk(number, content, at, checksums) for at in offsets]


def chunk(number: int, content: NDArray[np.uint8], at: int, checksums: Sequence[int] | None) -> bytes:
    """The message whose bytes begin at `at`."""
    crc = None if checksums is None else checksums[at // limits.CHUNK_BYTES_MAX]
    return export_response(number, at, content[at : at + limits.CHUNK_BYTES_MAX], crc)


async def live_parts(
    sessions: Sessions, workers: TextWorkers, model: ServedModel, session_id: str, with_pages: bool
) -> AsyncIterator[snapshot_pb2.ExportStateResponse | bytes]:
    """All messages of a live session as it is between two requests, with the bytes of its last version.

    The session is held while it is copied, and not while a slow reader takes the copy; there is one copy at a time.
    """
    async with sessions.live_export(model):
        copy = await live_copy(sessions, workers, model, session_id, with_pages)
        async for part in parts(workers, copy.header, copy.agent_state, copy.key_value, {}):
            yield part


class LiveCopy(NamedTuple):
    """A live session as it was. `owners` keep the bytes from being given back while somebody reads them."""

    header: snapshot_pb2.StateHeader
    agent_state: NDArray[np.uint8]
    key_value: NDArray[np.uint8] | None
    owners: tuple[object, ...]


async def live_copy(
    sessions: Sessions, workers: TextWorkers, model: ServedModel, session_id: str, with_pages: bool
) -> LiveCopy:
    """Header, the application's bytes and pages of a live session, as they are now."""
    description, runtime, pages, store = sessions.parts(model)
    session = runtime.engine.sessions.hold(session_id, "an export")
    try:
        saved, key_value = None, None
        is_saved = session.version or session.origin is not None
        if is_saved and (manager := await workers.run(store.reader)) is not None:
            saved = await workers.run(last_saved, manager, session)
        if with_pages:
            async with sessions.pages(runtime, session, pages.cache_type) as found:
                key_value = found
        header = state_header(session, model, description, pages, "" if key_value is None else pages.cache_type)
        agent_state = NOTHING if saved is None else saved.agent_state
        return LiveCopy(header, agent_state, key_value, (saved, session.saved_pages))
    finally:
        sessions.release(runtime, session)


def last_saved(manager: StateManager, session: Session) -> SavedState | None:
    """A session's version, or its original's; where its own was deleted, the latest, if there is one. Blocks."""
    if session.origin is not None:
        return original_of(manager, session)
    for wanted in (session.version, None):
        try:
            return manager.restore(session.session_id, wanted)
        except NotFoundError:
            continue
    return None
