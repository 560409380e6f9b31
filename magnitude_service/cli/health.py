"""`magnitude health`: one line per model of a server, and an exit status for scripts and container health checks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magnitude_service.cli.connection import (
    ADDRESS,
    Address,
    CaFile,
    ClientCertificate,
    ClientKey,
    ClientTokenFile,
    Connection,
    Tls,
)
from magnitude_service.errors import DeadlineExceededError, UnavailableError

STATES = "MODEL_STATE_"
"""What every state's name begins with in the contract."""


def health(
    address: Address = ADDRESS,
    model: Annotated[str, typer.Option(help="One model; all of them otherwise.")] = "",
    live: Annotated[bool, typer.Option("--live", help="Only whether the server answers, ready or not.")] = False,
    timeout: Annotated[int, typer.Option(help="Milliseconds until nobody is there.", min=1)] = 3000,
    tls: Tls = False,
    ca_file: CaFile = "",
    client_certificate: ClientCertificate = "",
    client_key: ClientKey = "",
    client_token_file: ClientTokenFile = "",
) -> None:
    """Say how a server is. The exit status is 0 when the model (the default one, unless named) is READY, else 75."""
    connection = Connection(tls, ca_file, client_certificate, client_key, client_token_file)
    response = ask(connection, address, model, timeout / 1000)
    for each in response.models:
        typer.echo(describe(each))
    if not live and (not response.models or state(response.models[0]) != "READY"):
        found = state(response.models[0]) if response.models else "without a model"
        raise UnavailableError(f"The server at {address} is {found}.", remedy="Wait, or see its log.")


def ask(connection: Connection, address: str, model: str, timeout_seconds: float) -> Any:
    """The server's answer, without trying again. Raises UnavailableError where there is none, MagnitudeError where it
    is a refusal."""
    from magnitude_service.config import quieten_grpc

    quieten_grpc()
    from magnitude.errors import CallError
    from magnitude_service.cli.infer import as_ours

    try:
        with connection.client(address, timeout_seconds=timeout_seconds, retries=False) as client:
            return client.health(model)
    except CallError as error:
        found = as_ours(error, address, "name another --address")
        if isinstance(found, DeadlineExceededError):
            found = UnavailableError(f"Nobody answers at {address} within --timeout.", remedy="Start a server.")
        raise found from error


def state(model: Any) -> str:
    """READY, LOADING, …: the state's name in the contract."""
    names = model.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    return str(names[model.state].name).removeprefix(STATES)


def describe(model: Any) -> str:
    """One line: name, state, and what there is to say about it."""
    words = [model.name, state(model)]
    if words[1] == "LOADING":
        words.append(f"{model.progress:.0%}")
    if model.HasField("load"):
        load = model.load
        words.append(f"{load.running_requests} running, {load.waiting_requests} waiting")
        words.append(f"{load.pages_used}/{load.pages_total} pages")
    if model.HasField("failure"):
        words.append(model.failure.message)
    return "  ".join(words)
