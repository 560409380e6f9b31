"""HealthService, and beside it the standard grpc.health.v1.

Everything here is read from memory: no lock that the engine holds, no file, no worker. So it answers within
milliseconds whatever else goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as standard_pb2
from grpc_health.v1 import health_pb2_grpc as standard_pb2_grpc

from magnitude.v1 import common_pb2, health_pb2, health_pb2_grpc
from magnitude_service import __version__
from magnitude_service.server import answers, models
from magnitude_service.server.malformed import refuse_malformed
from magnitude_service.server.served_models import ModelState, ServedModel, ServedModels

WATCH_SECONDS = 0.5
"""How soon a watcher hears of a change."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory by kind, in bytes; names as in the contract."""

    mapped_bytes: int = 0
    mapped_resident_bytes: int = 0
    key_value_bytes: int = 0
    key_value_used_bytes: int = 0
    anonymous_bytes: int = 0
    limit_bytes: int = 0
    available_bytes: int = 0


class HealthServicer(health_pb2_grpc.HealthServiceServicer):
    """Health of the server and of each model. `memory` must return at once."""

    def __init__(self, models_: ServedModels, memory: Callable[[], MemoryReport]) -> None:
        self._models = models_
        self._memory = memory
        self._begin_seconds = time.monotonic()

    async def Health(self, request: health_pb2.HealthRequest, context: Any) -> health_pb2.HealthResponse:
        """How things are now."""
        refuse_malformed(request, "")
        asked = [self._models.find(request.model)] if request.model else list(self._models)
        memory = self._memory()
        response = health_pb2.HealthResponse(
            version=__version__,
            models=[model_health(model) for model in asked],
            memory=health_pb2.MemoryUsage(
                mapped_bytes=memory.mapped_bytes,
                mapped_resident_bytes=memory.mapped_resident_bytes,
                key_value_bytes=memory.key_value_bytes,
                key_value_used_bytes=memory.key_value_used_bytes,
                anonymous_bytes=memory.anonymous_bytes,
                limit_bytes=memory.limit_bytes,
                available_bytes=memory.available_bytes,
            ),
        )
        response.uptime.FromNanoseconds(int((time.monotonic() - self._begin_seconds) * 1e9))
        return response


def model_health(model: ServedModel) -> health_pb2.ModelHealth:
    """How one model is."""
    message = health_pb2.ModelHealth(
        name=model.name,
        model_id=answers.model_id(model),
        state=models.state(model),
        failure=models.failure(model.failure),
    )
    if message.state == common_pb2.MODEL_STATE_LOADING:
        message.progress = model.progress
    if model.runtime is not None:
        message.load.CopyFrom(answers.load(model.runtime.engine.load()))
    return message


class StandardHealthServicer(standard_pb2_grpc.HealthServicer):
    """grpc.health.v1: the empty name lives as long as the process; a service's name is SERVING while the default model
    is READY."""

    def __init__(self, models_: ServedModels, services: Iterable[str]) -> None:
        self._models = models_
        self._services = frozenset(services)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends the watches, which would otherwise hold up a server that waits for its open calls."""
        self._stopping.set()

    async def Check(self, request: standard_pb2.HealthCheckRequest, context: Any) -> standard_pb2.HealthCheckResponse:
        """Whether a service serves now."""
        status = self._status(request.service)
        if status == standard_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service!r} here.")
        return standard_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: standard_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[standard_pb2.HealthCheckResponse]:
        """The same, again whenever it changes."""
        last, is_last = None, False
        while not is_last:
            is_last = self._stopping.is_set()
            status = self._status(request.service)
            if status != last:
                last = status
                yield standard_pb2.HealthCheckResponse(status=status)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WATCH_SECONDS)

    def _status(self, service: str) -> Any:
        if service == "":
            return standard_pb2.HealthCheckResponse.SERVING
        if service not in self._services:
            return standard_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        default = self._models.default
        if default is not None and default.state is ModelState.READY:
            return standard_pb2.HealthCheckResponse.SERVING
        return standard_pb2.HealthCheckResponse.NOT_SERVING
