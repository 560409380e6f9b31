"""`magnitude health`: one line per model of a server, and an exit status for scripts and container health checks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
from magnitude_service.errors import DeadlineExceededError, InvalidRequestError, UnavailableError

STATES = "MODEL_STATE_"
"""What every state's name begins with in the contract."""


def health(
    address: Address = ADDRESS,
    model: Annotated[str, typer.Option(help="One model; all of them otherwise.")] = "",
    live: Annotated[bool, typer.Option("--live", help="Only whether the server answers, ready or not.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask a plain --health-port, whatever is said of TLS and tokens.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Milliseconds until nobody is there.", min=1)] = 3000,
    tls: Tls = False,
    ca_file: CaFile = "",
    client_certificate: ClientCertificate = "",
    client_key: ClientKey = "",
    client_token_file: ClientTokenFile = "",
) -> None:
    """Say how a server is. The exit status is 0 when the model (the default one, unless named) is READY, else 75."""
    if probe:
        ask_as_kubernetes_does(address, model, live, timeout / 1000)
        return
    connection = Connection(tls, ca_file, client_certificate, client_key, client_token_file)
    response = ask(connection, address, model, timeout / 1000)
    for each in response.models:
        typer.echo(describe(each))
    if not live and (not response.models or state(response.models[0]) != "READY"):
        found = state(response.models[0]) if response.models else "without a model"
        raise UnavailableError(f"The server at {address} is {found}.", remedy="Wait, or see its log.")


def ask_as_kubernetes_does(address: str, model: str, live: bool, timeout_seconds: float) -> None:
    """Prints SERVING, or raises UnavailableError: the question of a readiness probe, or of a liveness probe."""
    if model:
        raise InvalidRequestError(
            "--probe takes no --model.", remedy="It asks for the default one; leave --model out.", field="model"
        )
    with errors_of_ours(address):
        from magnitude.probe import INFERENCE, serves

        is_serving = serves(address, "" if live else INFERENCE, timeout_seconds=timeout_seconds)
    if not is_serving:
        raise UnavailableError(f"The server at {address} is NOT_SERVING.", remedy="Wait, or see its log.")
    typer.echo("SERVING")


def ask(connection: Connection, address: str, model: str, timeout_seconds: float) -> Any:
    """The server's answer, without trying again. Raises UnavailableError where there is none, MagnitudeError where it
    is a refusal."""
    with (
        errors_of_ours(address),
        connection.client(address, timeout_seconds=timeout_seconds, retries=False) as client,
    ):
        return client.health(model)


@contextlib.contextmanager
def errors_of_ours(address: str) -> Iterator[None]:
    """Turns the client's errors into ours; one that nobody answered in time is as one that nobody answered."""
    from magnitude_service.config import quieten_grpc

    quieten_grpc()
    from magnitude.errors import CallError
    from magnitude_service.cli.infer import as_ours

    try:
        yield
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
