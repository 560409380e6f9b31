"""Puts the servicers on a port, with limits on what one caller may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2_grpc as standard_pb2_grpc

from magnitude.v1 import (
    health_pb2,
    health_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    snapshot_pb2,
    snapshot_pb2_grpc,
)
from magnitude_service.errors import PreconditionError
from magnitude_service.metrics import Metrics
from magnitude_service.server.generation import Generations
from magnitude_service.server.health import HealthServicer, MemoryReport, StandardHealthServicer
from magnitude_service.server.inference import InferenceServicer
from magnitude_service.server.interceptors import CallInterceptor
from magnitude_service.server.models import ModelServicer
from magnitude_service.server.options import ServerOptions
from magnitude_service.server.reflection import LazyReflection
from magnitude_service.server.served_models import ServedModels
from magnitude_service.server.snapshots import SnapshotServicer
from magnitude_service.server.text_workers import TextWorkers

FILES: tuple[FileDescriptor, ...] = (
    inference_pb2.DESCRIPTOR,
    model_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    snapshot_pb2.DESCRIPTOR,
)
SERVICES = tuple(service.full_name for file in FILES for service in file.services_by_name.values())
STANDARD_HEALTH = "grpc.health.v1.Health"

KEEPALIVE_ANSWER_SECONDS = 20.0
PING_STRIKES_MAX = 2
STOP_MARGIN_SECONDS = 2.0
"""After the grace period, for answers that the engine has just ended to reach their callers."""


class Server:
    """The port and what answers on it. Made and used on one event loop; `generations.deliver` takes any thread."""

    def __init__(
        self,
        options: ServerOptions,
        models: ServedModels,
        generations: Generations,
        metrics: Metrics,
        memory: Callable[[], MemoryReport],
    ) -> None:
        self.port = 0
        self._options = options
        self._models = models
        self._generations = generations
        self._workers = TextWorkers(options.text_workers)
        interceptor = CallInterceptor(metrics, options.message_bytes_max)
        self._grpc = grpc.aio.server(interceptors=[interceptor], options=channel_options(options))
        inference = InferenceServicer(models, generations, self._workers, metrics, options.stream_buffer_bytes)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, self._grpc)
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(models, options.message_bytes_max), self._grpc)
        health_pb2_grpc.add_HealthServiceServicer_to_server(HealthServicer(models, memory), self._grpc)
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(SnapshotServicer(), self._grpc)
        self._standard_health = StandardHealthServicer(models, SERVICES)
        standard_pb2_grpc.add_HealthServicer_to_server(self._standard_health, self._grpc)
        self._grpc.add_generic_rpc_handlers((LazyReflection((*SERVICES, STANDARD_HEALTH)),))

    async def start(self) -> int:
        """Listens, and returns the port. Raises PreconditionError where the address cannot be had."""
        self._generations.attach(asyncio.get_running_loop())
        address = f"{self._options.host}:{self._options.port}"
        try:
            self.port = self._grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise PreconditionError(
                f"The address {address} cannot be listened on.",
                remedy="Stop what listens there, or choose another --port or --host.",
                reason="ADDRESS_UNAVAILABLE",
                address=address,
            ) from error
        await self._grpc.start()
        return self.port

    def drain(self) -> None:
        """Refuses new requests from now on, and goes on answering everything else."""
        for model in self._models:
            model.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Closes the port, lets open calls end for the grace period, then ends them. May be called again, with less
        grace, before it has returned. `app` has ended all generations by then: what is left is to be read."""
        self.drain()
        self._standard_health.stop()
        await self._grpc.stop(grace_seconds + STOP_MARGIN_SECONDS)
        self._workers.close()


def channel_options(options: ServerOptions) -> Sequence[tuple[str, Any]]:
    """Limits that grpc itself holds. Its bound on messages is twice ours: between the two the error has our details."""
    return (
        ("grpc.max_receive_message_length", 2 * options.message_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", options.connection_streams_max),
        ("grpc.so_reuseport", 0),  # otherwise a second server would take half of our calls, and nobody be told
        ("grpc.keepalive_time_ms", int(options.keepalive_seconds * 1_000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_ANSWER_SECONDS * 1_000)),
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_ANSWER_SECONDS * 1_000)),  # else 60 s, whatever keepalive says
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", int(options.ping_interval_min_seconds * 1_000)),
        ("grpc.http2.max_ping_strikes", PING_STRIKES_MAX),
    )
