"""TLS and mutual TLS from PEM files, which are read again when they change: certificates are renewed under a server
that runs for months."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

import grpc

from magnitude_service.errors import ConfigurationError, MagnitudeError
from magnitude_service.server.options import ServerOptions
from magnitude_service.server.watched_files import WatchedFiles, read_whole

RELOAD_SECONDS = 1.0
"""How often the files are looked at, at most; each handshake asks."""

PEM_BYTES_MAX = 1 << 20

logger = logging.getLogger("magnitude.server")


class Certificates:
    """What the server shows, and whom it asks for what. *Lifetime*: grpc asks `renewed` from its own threads."""

    def __init__(self, options: ServerOptions) -> None:
        """Reads and checks the files. Raises ConfigurationError."""
        self._options = options
        self._files = WatchedFiles(_paths(options), RELOAD_SECONDS)
        self._first = _configuration(options)

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials that follow the files."""
        is_mutual = bool(self._options.tls_client_ca)
        return grpc.dynamic_ssl_server_credentials(self._first, self.renewed, is_mutual)  # type: ignore[arg-type]

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What changed since the last question; None for nothing. Files that do not go together, as in the middle of a
        renewal, change nothing and are logged once."""
        if not self._files.have_changed():
            return None
        try:
            found = _configuration(self._options)
        except MagnitudeError as error:
            logger.error("the certificates stay as they were: %s", error)
            return None
        logger.info("certificates were read again from %s", self._options.tls_certificate)
        return found


def _paths(options: ServerOptions) -> Sequence[Path]:
    names = (options.tls_certificate, options.tls_key, options.tls_client_ca)
    return [Path(name) for name in names if name]


def _configuration(options: ServerOptions) -> grpc.ServerCertificateConfiguration:
    certificate, key = _read(options.tls_certificate, "tls_certificate"), _read(options.tls_key, "tls_key")
    authorities = _read(options.tls_client_ca, "tls_client_ca") if options.tls_client_ca else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"{options.tls_certificate} and {options.tls_key} are no certificate and its private key: {_words(error)}.",
            remedy="Both must be PEM, the key without a password.",
            field="tls_certificate",
        ) from error
    if authorities is not None:
        try:
            context.load_verify_locations(options.tls_client_ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"{options.tls_client_ca} holds no certificates of authorities: {_words(error)}.",
                remedy="It must be PEM.",
                field="tls_client_ca",
            ) from error
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)


def _words(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)


def _read(name: str, field: str) -> bytes:
    return read_whole(Path(name), PEM_BYTES_MAX, field)
