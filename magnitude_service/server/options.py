"""What an operator may say about the port and its callers. Imports nothing that costs time."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class ServerOptions(Options):
    """Where the server listens, and how much one caller may take of it."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 or [::] lets other machines in.")
    port: int = option(50051, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    metrics_port: int = option(0, "Port of Prometheus' /metrics on the same host; 0: none.", minimum=0, maximum=65_535)
    message_bytes_max: int = option(
        32 << 20,
        "Largest message accepted. A larger one lets longer prompts in, and lets each caller hold more memory.",
        minimum=1 << 16,
        maximum=1 << 30,
    )
    connection_streams_max: int = option(
        256, "Calls that one connection may have open; more wait at the client.", minimum=1, maximum=65_536
    )
    stream_buffer_bytes: int = option(
        1 << 20,
        "What a stream may owe to a slow reader before it fails with SLOW_READER.",
        minimum=1 << 10,
        maximum=1 << 28,
    )
    ping_interval_min_seconds: float = option(
        10.0, "A client that pings more often is disconnected.", minimum=0.1, maximum=3600
    )
    keepalive_seconds: float = option(
        60.0, "A silent connection is probed after this time, so that a vanished client is noticed.", minimum=1
    )
    text_workers: int = option(
        2,
        "Threads that tokenize. With two, a short prompt does not wait for a very long one.",
        minimum=1,
        maximum=64,
    )
