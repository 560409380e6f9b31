"""Credentials of TLS from files, for `Client(credentials=…)`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import grpc

PathName = str | PathLike[str]


def tls_credentials(
    ca_file: PathName | None = None, certificate_file: PathName | None = None, key_file: PathName | None = None
) -> grpc.ChannelCredentials:
    """Trusts the authorities of `ca_file`, or grpc's own where it is absent; with certificate and key it shows who is
    calling (mutual TLS). All are PEM. Raises ValueError for one of the two without the other, OSError for a file that
    cannot be read."""
    if (certificate_file is None) != (key_file is None):
        raise ValueError("A certificate goes with its key: give both files, or neither.")
    authorities, key, certificate = (_read(name) for name in (ca_file, key_file, certificate_file))
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def _read(name: PathName | None) -> bytes | None:
    return None if name is None else Path(name).read_bytes()
