"""Saved sessions of a server: `client.sessions` lists, saves and restores them, and moves them between servers.

with magnitude.Client("127.0.0.1:50051") as client:
    client.sessions.save("agent/one", agent_state=b"draft", labels={"step": "search"})
    state = client.sessions.export("agent/one")
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import grpc

from magnitude.errors import CallError, DataLoss, call_error
from magnitude.v1 import snapshot_pb2

if TYPE_CHECKING:
    from magnitude.client import Client

CHUNK_BYTES = 1 << 20
"""What one message of a state holds at most: the contract's limit."""

BYTES_AT_ONCE_MAX = 256 << 20
"""For a state up to so large, memory is taken before it comes, as its header says; for more, as it comes."""


@dataclass(frozen=True)
class ExportedState:
    """A version, whole: what it is, the application's bytes, and the pages (empty where they were not kept)."""

    header: snapshot_pb2.StateHeader
    agent_state: bytes
    key_value: bytes = b""


class Sessions:
    """The calls of SnapshotService, with plain arguments. Every method raises CallError. `model`: its name; empty: the
    server's default."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self,
        session_id: str = "",
        *,
        model: str = "",
        labels: Mapping[str, str] | None = None,
        all_versions: bool = False,
        page_size: int | None = None,
    ) -> Iterator[snapshot_pb2.Snapshot]:
        """Versions by session and version: of one session or of all, the latest or all, with all of these labels."""
        request = snapshot_pb2.ListRequest(
            model=model, session_id=session_id, labels=labels, all_versions=all_versions, page_size=page_size
        )
        while True:
            page = self._call("List", request)
            yield from page.snapshots
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def get(
        self, session_id: str, version: int | None = None, *, model: str = "", return_agent_state: bool = False
    ) -> snapshot_pb2.GetResponse:
        """A version, the latest where none is named."""
        request = snapshot_pb2.GetRequest(
            snapshot=_reference(session_id, version), model=model, return_agent_state=return_agent_state
        )
        response: snapshot_pb2.GetResponse = self._call("Get", request)
        return response

    def save(
        self,
        session_id: str,
        agent_state: bytes | None = None,
        *,
        model: str = "",
        with_pages: bool = True,
        **options: Any,
    ) -> snapshot_pb2.Snapshot:
        """Saves a live session as a new version. `options`: the other fields of SaveRequest (labels, …)."""
        request = snapshot_pb2.SaveRequest(
            session_id=session_id,
            model=model,
            agent_state=agent_state,
            cache_retention=_retention(with_pages),
            **{name: value for name, value in options.items() if value is not None},
        )
        snapshot: snapshot_pb2.Snapshot = self._change("Save", request).snapshot
        return snapshot

    def restore(
        self, session_id: str, version: int | None = None, *, model: str = "", as_session_id: str = ""
    ) -> snapshot_pb2.RestoreResponse:
        """Brings a version back as a live session, of its own name or another."""
        request = snapshot_pb2.RestoreRequest(
            snapshot=_reference(session_id, version), model=model, session_id=as_session_id
        )
        response: snapshot_pb2.RestoreResponse = self._call("Restore", request)
        return response

    def delete(self, session_id: str, versions: Sequence[int] = (), *, model: str = "") -> snapshot_pb2.DeleteResponse:
        """Deletes versions, all where none is named."""
        request = snapshot_pb2.DeleteRequest(session_id=session_id, model=model, versions=versions)
        response: snapshot_pb2.DeleteResponse = self._change("Delete", request)
        return response

    def compact(
        self, keep_versions: int | None = None, *, model: str = "", dry_run: bool = False
    ) -> snapshot_pb2.CompactResponse:
        """Gives back the bytes of deleted versions; first drops all but `keep_versions` of each session."""
        request = snapshot_pb2.CompactRequest(model=model, keep_versions=keep_versions, dry_run=dry_run)
        response: snapshot_pb2.CompactResponse = self._call("Compact", request)
        return response

    def export(
        self,
        session_id: str,
        version: int | None = None,
        *,
        model: str = "",
        with_pages: bool = True,
        checks_sha256: bool = False,
    ) -> ExportedState:
        """A version of any size. Raises DataLoss where what comes is not what was sent: every byte is checked by the
        CRC-32C of its chunk, the chunks by their places, and all of them by their length.

        `checks_sha256`: and by the SHA-256 of all, for what is kept elsewhere; it takes longer than all the rest.
        """
        request = snapshot_pb2.ExportStateRequest(
            model=model, snapshot=_reference(session_id, version), cache_retention=_retention(with_pages)
        )
        try:
            return _received(self._client.export_state_bytes(request), checks_sha256)
        except grpc.RpcError as error:
            raise call_error(error) from error

    def import_state(
        self, state: ExportedState, session_id: str = "", *, model: str = "", expected_version: int | None = None
    ) -> snapshot_pb2.Snapshot:
        """Saves an exported state as the next version of a session, of its own name or another."""
        header = snapshot_pb2.ImportStateHeader(
            model=model,
            session_id=session_id or state.header.snapshot.session_id,
            state=state.header,
            expected_version=expected_version,
        )
        return self.send(header, state)

    def send(self, header: snapshot_pb2.ImportStateHeader, state: ExportedState) -> snapshot_pb2.Snapshot:
        """The same with a header of one's own: it may name a live session, which is saved with the agent state."""
        stub = self._client.snapshots
        response = self._client.change(stub.ImportState, lambda: _import_messages(header, state))
        snapshot: snapshot_pb2.Snapshot = response.snapshot
        return snapshot

    def _call(self, method: str, request: Any) -> Any:
        return self._client.call(getattr(self._client.snapshots, method), request)

    def _change(self, method: str, request: Any) -> Any:
        return self._client.change(getattr(self._client.snapshots, method), lambda: request)


def _reference(session_id: str, version: int | None) -> snapshot_pb2.SnapshotReference:
    return snapshot_pb2.SnapshotReference(session_id=session_id, version=version)


def _retention(with_pages: bool) -> snapshot_pb2.CacheRetention:
    return snapshot_pb2.CACHE_RETENTION_PAGES if with_pages else snapshot_pb2.CACHE_RETENTION_NONE


def _received(messages: Iterable[bytes], checks_sha256: bool) -> ExportedState:
    """A state from the messages of ExportState."""
    header, end = snapshot_pb2.StateHeader(), None
    contents = {name: _Content(name, 0, checks_sha256) for name in _PARTS.values()}
    for message in messages:
        if (found := _chunk_of(message)) is not None:
            name, chunk = found
            contents[name].add(chunk)
            continue
        part = snapshot_pb2.ExportStateResponse.FromString(message)
        match part.WhichOneof("part"):
            case "header":
                header = part.header
                sizes = {
                    "agent_state": header.snapshot.agent_state_bytes,
                    "key_value": header.snapshot.key_value_bytes if header.HasField("page_layout") else 0,
                }
                contents = {name: _Content(name, nbytes, checks_sha256) for name, nbytes in sizes.items()}
            case "end":
                end = part.end
            case "agent_state" | "key_value" as name:
                chunk = getattr(part, name)
                contents[name].add(_Chunk(chunk.offset_bytes, chunk.content, chunk.crc32c))
    if end is None:
        raise _damaged("the stream ended before its end message")
    return ExportedState(
        header,
        contents["agent_state"].whole(end.agent_state_bytes, end.agent_state_sha256),
        contents["key_value"].whole(end.key_value_bytes, end.key_value_sha256),
    )


class _Chunk(NamedTuple):
    """A StateChunk."""

    offset_bytes: int
    content: bytes
    crc32c: int


_PARTS = {2 << 3 | 2: "agent_state", 3 << 3 | 2: "key_value"}
_OFFSET, _CONTENT, _CRC = 1 << 3, 2 << 3 | 2, 3 << 3 | 5


def _chunk_of(message: bytes) -> tuple[str, _Chunk] | None:
    """Name and chunk of an ExportStateResponse that holds one, read with one copy; None for any other message, and
    for one that is not encoded as usual: protobuf's own parser, which copies thrice, knows what that is."""
    name = _PARTS.get(message[0]) if message else None
    if name is None:
        return None
    try:
        nbytes, at = _varint(message, 1)
        if at + nbytes != len(message):
            return None
        offset = 0
        if message[at] == _OFFSET:
            offset, at = _varint(message, at + 1)
        if message[at] != _CONTENT:
            return None
        nbytes, at = _varint(message, at + 1)
        end = at + nbytes
        if end + 5 != len(message) or message[end] != _CRC:
            return None
    except IndexError:
        return None
    return name, _Chunk(offset, message[at:end], int.from_bytes(message[end + 1 :], "little"))


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    value = shift = 0
    while message[at] > 0x7F:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | message[at] << shift, at + 1


class _Content:
    """Bytes that arrive in chunks: each is checked when it comes, and all of them at the end."""

    def __init__(self, name: str, nbytes: int, checks_sha256: bool) -> None:
        """`nbytes`: how many will come, by what the header says; memory for so many is taken at once."""
        self._name, self._nbytes = name, 0
        self._bytes = io.BytesIO()  # gives out what was written without a copy
        if 0 < nbytes <= BYTES_AT_ONCE_MAX:
            self._bytes.seek(nbytes - 1)
            self._bytes.write(b"\0")
            self._bytes.seek(0)
        self._sha256 = hashlib.sha256() if checks_sha256 else None

    def add(self, chunk: _Chunk) -> None:
        piece = chunk.content
        if chunk.offset_bytes != self._nbytes:
            raise _damaged(f"a chunk of {self._name} begins at {chunk.offset_bytes}, not at {self._nbytes}")
        if google_crc32c.value(piece) != chunk.crc32c:
            raise _damaged(f"the CRC of {self._name} at {chunk.offset_bytes} is wrong")
        self._bytes.write(piece)
        self._nbytes += len(piece)
        if self._sha256 is not None:
            self._sha256.update(piece)

    def whole(self, nbytes: int, sha256: bytes) -> bytes:
        if nbytes != self._nbytes:
            raise _damaged(f"{self._name} has {self._nbytes} bytes, not {nbytes}")
        if self._nbytes and self._sha256 is not None and self._sha256.digest() != sha256:
            raise _damaged(f"the SHA-256 of {self._name} is wrong")
        self._bytes.truncate(nbytes)
        return self._bytes.getvalue()


def _import_messages(
    header: snapshot_pb2.ImportStateHeader, state: ExportedState
) -> Iterator[snapshot_pb2.ImportStateRequest]:
    yield snapshot_pb2.ImportStateRequest(header=header)
    for chunk in _chunks(state.agent_state):
        yield snapshot_pb2.ImportStateRequest(agent_state=chunk)
    for chunk in _chunks(state.key_value):
        yield snapshot_pb2.ImportStateRequest(key_value=chunk)
    yield snapshot_pb2.ImportStateRequest(
        end=snapshot_pb2.StateEnd(
            agent_state_bytes=len(state.agent_state),
            agent_state_sha256=hashlib.sha256(state.agent_state).digest(),
            key_value_bytes=len(state.key_value),
            key_value_sha256=hashlib.sha256(state.key_value).digest(),
        )
    )


def _chunks(content: bytes) -> Iterator[snapshot_pb2.StateChunk]:
    for begin in range(0, len(content), CHUNK_BYTES):
        part = content[begin : begin + CHUNK_BYTES]
        yield snapshot_pb2.StateChunk(offset_bytes=begin, content=part, crc32c=google_crc32c.value(part))


def _damaged(what: str) -> CallError:
    return DataLoss(grpc.StatusCode.DATA_LOSS, f"The exported state is damaged: {what}.", reason="INTEGRITY")
