"""Puts the servicers on a port, with limits on what one caller may take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
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
from magnitude_service.server.sessions import Sessions
from magnitude_service.server.snapshots import SnapshotServicer
from magnitude_service.server.text_workers import TextWorkers
from magnitude_service.server.tls import Certificates
from magnitude_service.server.tokens import Tokens

FILES: tuple[FileDescriptor, ...] = (
    inference_pb2.DESCRIPTOR,
    model_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    snapshot_pb2.DESCRIPTOR,
)
SERVICES = tuple(service.full_name for file in FILES for service in file.services_by_name.values())
STANDARD_HEALTH = "grpc.health.v1.Health"
LOOPBACK = frozenset({"127.0.0.1", "[::1]", "localhost"})

logger = logging.getLogger("magnitude.server")

STORAGE_THREADS = 8
"""Saves that wait for the disk together share a sync; nobody else waits for it."""

KEEPALIVE_ANSWER_SECONDS = 20.0
PING_STRIKES_MAX = 2
HANDSHAKE_SECONDS = 20.0
"""A connection that has not said what it wants by then is closed."""

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
        self._storage = TextWorkers(STORAGE_THREADS, "magnitude-state", "the disk")
        self._sessions = Sessions(self._storage, memory)
        tokens = Tokens(Path(options.token_file)) if options.token_file else None
        self._certificates = Certificates(options) if options.tls_certificate else None
        if tokens is not None and self._certificates is None and options.host not in LOOPBACK:
            logger.warning("tokens are asked for without TLS: whoever can listen in on %s reads them", options.host)
        interceptor = CallInterceptor(metrics, options.message_bytes_max, tokens)
        self._grpc = grpc.aio.server(interceptors=[interceptor], options=channel_options(options))
        inference = InferenceServicer(
            models, generations, self._workers, metrics, options.stream_buffer_bytes, self._sessions
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, self._grpc)
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(models, options.message_bytes_max), self._grpc)
        health_pb2_grpc.add_HealthServiceServicer_to_server(HealthServicer(models, memory), self._grpc)
        snapshots = SnapshotServicer(models, self._sessions, self._storage)
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(snapshots, self._grpc)
        self._standard_health = StandardHealthServicer(models, SERVICES)
        standard_pb2_grpc.add_HealthServicer_to_server(self._standard_health, self._grpc)
        if options.reflection:
            self._grpc.add_generic_rpc_handlers((LazyReflection((*SERVICES, STANDARD_HEALTH)),))
        self._probes: grpc.aio.Server | None = None
        if options.health_port:
            self._probes = grpc.aio.server(options=channel_options(options))
            standard_pb2_grpc.add_HealthServicer_to_server(self._standard_health, self._probes)

    async def start(self) -> int:
        """Listens, and returns the port. Raises PreconditionError where the address cannot be had."""
        self._generations.attach(asyncio.get_running_loop())
        credentials = self._certificates.credentials() if self._certificates is not None else None
        self.port = self._listen(self._grpc, self._options.port, "--port", credentials)
        if self._probes is not None:
            self._listen(self._probes, self._options.health_port, "--health-port")
            await self._probes.start()
        await self._grpc.start()
        return self.port

    def _listen(
        self, server: grpc.aio.Server, port: int, flag: str, credentials: grpc.ServerCredentials | None = None
    ) -> int:
        address = f"{self._options.host}:{port}"
        try:
            if credentials is not None:
                return server.add_secure_port(address, credentials)
            return server.add_insecure_port(address)
        except RuntimeError as error:
            raise PreconditionError(
                f"The address {address} cannot be listened on.",
                remedy=f"Stop what listens there, or choose another {flag} or --host.",
                reason="ADDRESS_UNAVAILABLE",
                address=address,
            ) from error

    def drain(self) -> None:
        """Refuses new requests from now on, and goes on answering everything else."""
        for model in self._models:
            model.drain()

    async def settle(self) -> None:
        """Waits for saves that have begun; they need the engine."""
        await self._sessions.settle()

    async def stop(self, grace_seconds: float) -> None:
        """Closes the port, lets open calls end for the grace period, then ends them. May be called again, with less
        grace, before it has returned. `app` has ended all generations by then: what is left is to be read."""
        self.drain()
        self._standard_health.stop()
        await self._grpc.stop(grace_seconds + STOP_MARGIN_SECONDS)
        if self._probes is not None:  # last: until then the process lives, and a probe must not say otherwise
            await self._probes.stop(0)
        self._workers.close()
        self._storage.close()


def channel_options(options: ServerOptions) -> Sequence[tuple[str, Any]]:
    """Limits that grpc itself holds. Its bound on messages is twice ours: between the two the error has our details."""
    age: tuple[tuple[str, Any], ...] = ()
    if options.connection_age_seconds:
        age = (
            ("grpc.max_connection_age_ms", int(options.connection_age_seconds * 1_000)),
            ("grpc.max_connection_age_grace_ms", int(options.connection_age_grace_seconds * 1_000)),
        )
    return (
        *age,
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1_000)),
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
