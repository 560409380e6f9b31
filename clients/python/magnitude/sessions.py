"""Saved sessions of a server: `client.sessions` lists, saves and restores them, and moves them between servers.

with magnitude.Client("127.0.0.1:50051") as client:
    client.sessions.save("agent/one", agent_state=b"draft", labels={"step": "search"})
    state = client.sessions.export("agent/one")
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c
import grpc

from magnitude.errors import CallError, DataLoss, call_error
from magnitude.v1 import snapshot_pb2

if TYPE_CHECKING:
    from magnitude.client import Client

CHUNK_BYTES = 1 << 20
"""What one message of a state holds at most: the contract's limit."""


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
        self, session_id: str, version: int | None = None, *, model: str = "", with_pages: bool = True
    ) -> ExportedState:
        """A version of any size, every byte checked. Raises DataLoss where what comes is not what was sent."""
        request = snapshot_pb2.ExportStateRequest(
            model=model, snapshot=_reference(session_id, version), cache_retention=_retention(with_pages)
        )
        header, end = snapshot_pb2.StateHeader(), None
        contents = {"agent_state": _Content("agent_state"), "key_value": _Content("key_value")}
        try:
            for part in self._client.snapshots.ExportState(request):
                match part.WhichOneof("part"):
                    case "header":
                        header = part.header
                    case "end":
                        end = part.end
                    case "agent_state" | "key_value" as name:
                        contents[name].add(getattr(part, name))
        except grpc.RpcError as error:
            raise call_error(error) from error
        if end is None:
            raise _damaged("the stream ended before its end message")
        return ExportedState(
            header,
            contents["agent_state"].whole(end.agent_state_bytes, end.agent_state_sha256),
            contents["key_value"].whole(end.key_value_bytes, end.key_value_sha256),
        )

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


class _Content:
    """Bytes that arrive in chunks: each is checked when it comes, and all of them at the end."""

    def __init__(self, name: str) -> None:
        self._name, self._nbytes = name, 0
        self._pieces: list[bytes] = []
        self._sha256 = hashlib.sha256()

    def add(self, chunk: snapshot_pb2.StateChunk) -> None:
        piece = chunk.content  # each look at it is a copy
        if chunk.offset_bytes != self._nbytes:
            raise _damaged(f"a chunk of {self._name} begins at {chunk.offset_bytes}, not at {self._nbytes}")
        if google_crc32c.value(piece) != chunk.crc32c:
            raise _damaged(f"the CRC of {self._name} at {chunk.offset_bytes} is wrong")
        self._pieces.append(piece)
        self._nbytes += len(piece)
        self._sha256.update(piece)

    def whole(self, nbytes: int, sha256: bytes) -> bytes:
        if nbytes != self._nbytes:
            raise _damaged(f"{self._name} has {self._nbytes} bytes, not {nbytes}")
        if self._nbytes and self._sha256.digest() != sha256:
            raise _damaged(f"the SHA-256 of {self._name} is wrong")
        return b"".join(self._pieces)


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
