"""SnapshotService: the contract stands, the function does not yet. Every rpc says so, with details."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from magnitude.v1 import snapshot_pb2, snapshot_pb2_grpc
from magnitude_service.server.models import not_yet

REMEDY = "Keep the conversation at the client, and send it with each request."


class SnapshotServicer(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Refuses by name."""

    async def Save(self, request: snapshot_pb2.SaveRequest, context: Any) -> snapshot_pb2.SaveResponse:
        """Not yet."""
        not_yet("Save", REMEDY)

    async def Restore(self, request: snapshot_pb2.RestoreRequest, context: Any) -> snapshot_pb2.RestoreResponse:
        """Not yet."""
        not_yet("Restore", REMEDY)

    async def Get(self, request: snapshot_pb2.GetRequest, context: Any) -> snapshot_pb2.GetResponse:
        """Not yet."""
        not_yet("Get", REMEDY)

    async def List(self, request: snapshot_pb2.ListRequest, context: Any) -> snapshot_pb2.ListResponse:
        """Not yet."""
        not_yet("List", REMEDY)

    async def Delete(self, request: snapshot_pb2.DeleteRequest, context: Any) -> snapshot_pb2.DeleteResponse:
        """Not yet."""
        not_yet("Delete", REMEDY)

    async def Compact(self, request: snapshot_pb2.CompactRequest, context: Any) -> snapshot_pb2.CompactResponse:
        """Not yet."""
        not_yet("Compact", REMEDY)

    async def ExportState(
        self, request: snapshot_pb2.ExportStateRequest, context: Any
    ) -> AsyncIterator[snapshot_pb2.ExportStateResponse]:
        """Not yet."""
        not_yet("ExportState", REMEDY)
        yield snapshot_pb2.ExportStateResponse()  # makes this a generator, as the stream it will be

    async def ImportState(
        self, request: AsyncIterable[snapshot_pb2.ImportStateRequest], context: Any
    ) -> snapshot_pb2.ImportStateResponse:
        """Not yet."""
        not_yet("ImportState", REMEDY)
