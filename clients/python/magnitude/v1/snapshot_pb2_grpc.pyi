"""Generated from proto/magnitude/v1 by proto/generate.py. Do not edit."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio

from magnitude.v1 import snapshot_pb2

class SnapshotServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    Save: grpc.UnaryUnaryMultiCallable[snapshot_pb2.SaveRequest, snapshot_pb2.SaveResponse]
    Restore: grpc.UnaryUnaryMultiCallable[snapshot_pb2.RestoreRequest, snapshot_pb2.RestoreResponse]
    Get: grpc.UnaryUnaryMultiCallable[snapshot_pb2.GetRequest, snapshot_pb2.GetResponse]
    List: grpc.UnaryUnaryMultiCallable[snapshot_pb2.ListRequest, snapshot_pb2.ListResponse]
    Delete: grpc.UnaryUnaryMultiCallable[snapshot_pb2.DeleteRequest, snapshot_pb2.DeleteResponse]
    Compact: grpc.UnaryUnaryMultiCallable[snapshot_pb2.CompactRequest, snapshot_pb2.CompactResponse]
    ExportState: grpc.UnaryStreamMultiCallable[snapshot_pb2.ExportStateRequest, snapshot_pb2.ExportStateResponse]
    ImportState: grpc.StreamUnaryMultiCallable[snapshot_pb2.ImportStateRequest, snapshot_pb2.ImportStateResponse]

class SnapshotServiceServicer:
    def Save(self, request: snapshot_pb2.SaveRequest, context: Any) -> Awaitable[snapshot_pb2.SaveResponse]: ...
    def Restore(self, request: snapshot_pb2.RestoreRequest, context: Any) -> Awaitable[snapshot_pb2.RestoreResponse]: ...
    def Get(self, request: snapshot_pb2.GetRequest, context: Any) -> Awaitable[snapshot_pb2.GetResponse]: ...
    def List(self, request: snapshot_pb2.ListRequest, context: Any) -> Awaitable[snapshot_pb2.ListResponse]: ...
    def Delete(self, request: snapshot_pb2.DeleteRequest, context: Any) -> Awaitable[snapshot_pb2.DeleteResponse]: ...
    def Compact(self, request: snapshot_pb2.CompactRequest, context: Any) -> Awaitable[snapshot_pb2.CompactResponse]: ...
    def ExportState(self, request: snapshot_pb2.ExportStateRequest, context: Any) -> AsyncIterator[snapshot_pb2.ExportStateResponse]: ...
    def ImportState(self, request: AsyncIterable[snapshot_pb2.ImportStateRequest], context: Any) -> Awaitable[snapshot_pb2.ImportStateResponse]: ...

def add_SnapshotServiceServicer_to_server(
    servicer: SnapshotServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
