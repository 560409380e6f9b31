"""SnapshotService over a state file alone: what clients and the command line are tried against without a model."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from grpc_status import rpc_status

from magnitude.v1 import snapshot_pb2, snapshot_pb2_grpc
from magnitude_service.errors import MagnitudeError
from magnitude_service.server.status import to_status
from magnitude_service.snapshot import SavedState, StateSnapshotManager
from magnitude_service.snapshot.checksum import crc32c

CHUNK_BYTES = 1 << 20


class FileServicer(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Answers for one manager; `breaks` damages what it sends."""

    def __init__(self, manager: StateSnapshotManager) -> None:
        self.manager = manager
        self.breaks = ""

    def List(self, request: Any, context: Any) -> Any:
        with refusing(context):
            page = self.manager.list(
                request.session_id,
                labels=dict(request.labels),
                all_versions=request.all_versions,
                page_size=request.page_size if request.HasField("page_size") else 2,
                page_token=request.page_token,
            )
            return snapshot_pb2.ListResponse(snapshots=page.snapshots, next_page_token=page.next_page_token)

    def Get(self, request: Any, context: Any) -> Any:
        with refusing(context):
            saved = self._saved(request.snapshot)
            agent_state = saved.agent_state.tobytes() if request.return_agent_state else b""
            return snapshot_pb2.GetResponse(snapshot=saved.snapshot, agent_state=agent_state)

    def Save(self, request: Any, context: Any) -> Any:
        with refusing(context):
            snapshot = snapshot_pb2.Snapshot(session_id=request.session_id, labels=request.labels)
            header = snapshot_pb2.StateHeader(snapshot=snapshot)
            return snapshot_pb2.SaveResponse(snapshot=self.manager.save(header, agent_state=request.agent_state))

    def Delete(self, request: Any, context: Any) -> Any:
        with refusing(context):
            count, reclaimable = self.manager.delete(request.session_id, list(request.versions))
            return snapshot_pb2.DeleteResponse(deleted_versions=count, reclaimable_bytes=reclaimable)

    def Compact(self, request: Any, context: Any) -> Any:
        with refusing(context):
            keep = request.keep_versions if request.HasField("keep_versions") else None
            return snapshot_pb2.CompactResponse(**self.manager.compact(keep, dry_run=request.dry_run)._asdict())

    def ExportState(self, request: Any, context: Any) -> Iterator[Any]:
        with refusing(context):
            saved = self._saved(request.snapshot)
            agent_state = saved.agent_state.tobytes()
            yield snapshot_pb2.ExportStateResponse(header=saved.header)
            for begin in self._begins(len(agent_state)):
                part = agent_state[begin : begin + CHUNK_BYTES]
                crc = crc32c(part) ^ (self.breaks == "crc")
                if self.breaks == "byte":
                    part = part[:-1] + bytes([part[-1] ^ 1])
                chunk = snapshot_pb2.StateChunk(offset_bytes=begin, content=part, crc32c=crc)
                yield snapshot_pb2.ExportStateResponse(agent_state=chunk)
            if self.breaks != "end":
                digest = hashlib.sha256(agent_state + b"!" * (self.breaks == "sha256")).digest()
                size = len(agent_state) + (self.breaks == "size")
                end = snapshot_pb2.StateEnd(agent_state_bytes=size, agent_state_sha256=digest)
                yield snapshot_pb2.ExportStateResponse(end=end)

    def ImportState(self, request_iterator: Iterator[Any], context: Any) -> Any:
        with refusing(context):
            header = next(request_iterator).header
            agent_state, key_value = b"", b""
            for request in request_iterator:
                agent_state += request.agent_state.content
                key_value += request.key_value.content
            assert request.end.agent_state_sha256 == hashlib.sha256(agent_state).digest()
            state = header.state
            state.snapshot.session_id = header.session_id
            saved = self.manager.save(state, agent_state=agent_state, key_value=key_value or None)
            return snapshot_pb2.ImportStateResponse(snapshot=saved)

    def _begins(self, size: int) -> list[int]:
        """Where the chunks begin; some are lost, sent twice or in another order where a test wants that."""
        begins = list(range(0, size, CHUNK_BYTES))
        broken = {
            "lost": begins[1:],
            "last": begins[:-1],
            "twice": begins[:1] + begins,
            "order": begins[::-1],
        }
        return broken.get(self.breaks, begins)

    def _saved(self, reference: Any) -> SavedState:
        return self.manager.restore(reference.session_id, reference.version if reference.HasField("version") else None)


@contextlib.contextmanager
def refusing(context: Any) -> Iterator[None]:
    """An error of ours becomes the call's status."""
    try:
        yield
    except MagnitudeError as error:
        context.abort_with_status(rpc_status.to_status(to_status(error)))


@contextlib.contextmanager
def snapshot_server(manager: StateSnapshotManager) -> Iterator[tuple[str, FileServicer]]:
    """A server of a manager's file: its address, and its servicer."""
    servicer = FileServicer(manager)
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", 32 << 20)])
    snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        server.stop(None).wait()
