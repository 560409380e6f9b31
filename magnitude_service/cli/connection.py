"""How a command reaches a server: in plain text, over TLS, with a certificate of its own, with a bearer token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnitude_service.errors import ConfigurationError

if TYPE_CHECKING:
    from magnitude.client import Client

ADDRESS = "127.0.0.1:50051"
Address = Annotated[str, typer.Option(help="The server.", envvar="MAGNITUDE_ADDRESS")]
Tls = Annotated[bool, typer.Option("--tls", help="Encrypt, and trust public authorities.", envvar="MAGNITUDE_TLS")]
CaFile = Annotated[
    str, typer.Option(help="Encrypt, and trust the authorities of this PEM file.", envvar="MAGNITUDE_CA_FILE")
]
ClientCertificate = Annotated[
    str, typer.Option(help="PEM file of a certificate to show.", envvar="MAGNITUDE_CLIENT_CERTIFICATE")
]
ClientKey = Annotated[str, typer.Option(help="PEM file of its key.", envvar="MAGNITUDE_CLIENT_KEY")]
ClientTokenFile = Annotated[
    str,
    typer.Option(
        help="File whose first line is the bearer token to show; only over TLS.", envvar="MAGNITUDE_CLIENT_TOKEN_FILE"
    ),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """What the flags above say; as made here: plain text, and no token."""

    tls: bool = False
    ca_file: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""

    def client(self, address: str, **options: Any) -> Client:
        """A client of the server at an address. Raises ConfigurationError for files that are missing or go together
        with others, and for a token that would be sent in the clear."""
        from magnitude.client import Client
        from magnitude.tls import tls_credentials

        try:
            if self.tls or self.ca_file or self.certificate or self.key:
                files = (self.ca_file or None, self.certificate or None, self.key or None)
                options["credentials"] = tls_credentials(*files)
            if self.token_file:
                options["token"] = first_token(Path(self.token_file))
            return Client(address, **options)
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ConfigurationError(str(error), remedy="See --tls, --ca-file and --client-certificate.") from error


def first_token(path: Path) -> str:
    """The token on a file's first line. Raises ConfigurationError where there is none, and OSError."""
    from magnitude_service.server.tokens import TOKEN_BYTES_MAX, TOKEN_RULE, is_token

    with path.open("rb") as file:
        line = file.readline(TOKEN_BYTES_MAX + 2).strip()
    if not is_token(line):
        raise ConfigurationError(f"The first line of {path} is no token.", remedy=f"A token is {TOKEN_RULE}.")
    return line.decode("ascii")


PLAIN = Connection()
