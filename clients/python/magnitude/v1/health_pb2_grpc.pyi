"""Generated from proto/magnitude/v1 by proto/generate.py. Do not edit."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio

from magnitude.v1 import health_pb2

class HealthServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    Health: grpc.UnaryUnaryMultiCallable[health_pb2.HealthRequest, health_pb2.HealthResponse]

class HealthServiceServicer:
    def Health(self, request: health_pb2.HealthRequest, context: Any) -> Awaitable[health_pb2.HealthResponse]: ...

def add_HealthServiceServicer_to_server(
    servicer: HealthServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
