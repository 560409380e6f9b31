"""What an operator may say about the port and its callers. Imports nothing that costs time."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.errors import ConfigurationError
from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class ServerOptions(Options):
    """Where the server listens, and how much one caller may take of it."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 or [::] lets other machines in.")
    port: int = option(50051, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    metrics_port: int = option(0, "Port of Prometheus' /metrics on the same host; 0: none.", minimum=0, maximum=65_535)
    health_port: int = option(
        0,
        "Port on the same host that answers grpc.health.v1 alone, without TLS and tokens, for probes; 0: none.",
        minimum=0,
        maximum=65_535,
    )
    reflection: bool = option(True, "Describe the services to whoever asks, which grpcurl needs.")
    tls_certificate: str = option("", "PEM file of the server's certificate chain; turns TLS on, with --tls-key.")
    tls_key: str = option("", "PEM file of the certificate's private key.")
    tls_client_ca: str = option("", "PEM file of authorities; a caller must show a certificate of one (mutual TLS).")
    token_file: str = option("", "File of bearer tokens, one per line; a caller must send one. Empty: no tokens.")
    message_bytes_max: int = option(
        32 << 20,
        "Largest message accepted. A larger one lets longer prompts in, and lets each caller hold more memory.",
        minimum=1 << 16,
        maximum=1 << 30,
    )
    connection_streams_max: int = option(
        256, "Calls that one connection may have open; more wait at the client.", minimum=1, maximum=65_536
    )
    connection_age_seconds: float = option(
        3_600.0,
        "A connection takes no new calls after this time, so that clients spread over servers anew; 0: no limit.",
        minimum=0,
        maximum=1e6,
    )
    connection_age_grace_seconds: float = option(
        3_600.0, "How long the calls of such a connection may go on before they are cut.", minimum=1, maximum=1e6
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

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigurationError(
                "tls_certificate and tls_key are given one without the other.",
                remedy="Give both for TLS, or neither.",
                field="tls_key" if self.tls_certificate else "tls_certificate",
            )
        if self.tls_client_ca and not self.tls_certificate:
            raise ConfigurationError(
                "tls_client_ca is given without tls_certificate.",
                remedy="Give --tls-certificate and --tls-key too: callers show certificates over TLS alone.",
                field="tls_client_ca",
            )
