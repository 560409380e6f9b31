"""`magnitude infer`: one streamed answer in the terminal, from a server or, with --model, from this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnitude_service.cli.connection import (
    ADDRESS,
    PLAIN,
    CaFile,
    ClientCertificate,
    ClientKey,
    ClientTokenFile,
    Connection,
    Tls,
)
from magnitude_service.errors import (
    ConfigurationError,
    DeadlineExceededError,
    InvalidRequestError,
    MagnitudeError,
    UnavailableError,
)

if TYPE_CHECKING:
    from magnitude.errors import CallError

CLIENT_SETTINGS = frozenset({"host", "port"})
"""Settings of the server that also say whom to ask."""

OWN_NAMES = frozenset({"timeout"})
"""What the server refuses by name, and this command does."""

IN_PROCESS = {
    **{"host": "127.0.0.1", "port": 0, "metrics-port": 0, "health-port": 0, "grace-seconds": 0},
    **{"tls-certificate": "", "tls-key": "", "tls-client-ca": "", "token-file": ""},
}
"""How the server stands in this process, whatever is set for others."""


def split_settings(arguments: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """The flags of `magnitude serve` among the arguments (`--model`, `--threads`, …), and what is left for `infer`."""
    from magnitude_service.cli.flags import flag_parser
    from magnitude_service.config import REFUSED_NAMES, refuse_unknown

    end = arguments.index("--") if "--" in arguments else len(arguments)
    given, rest = flag_parser("magnitude infer", "", with_help=False).parse_known_args(arguments[:end])
    for argument in rest:
        name = argument.removeprefix("--").split("=")[0]
        if argument.startswith("--") and name in REFUSED_NAMES and name not in OWN_NAMES:
            refuse_unknown(name, f"--{name}", ())
    return vars(given), [*rest, *arguments[end:]]


def infer(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.", show_default=False)],
    address: Annotated[
        str, typer.Option(help="The server; --host and --port say it too.", envvar="MAGNITUDE_ADDRESS")
    ] = ADDRESS,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    system: Annotated[str, typer.Option(help="System message of the chat.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to generate at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token always.")] = None,
    seed: Annotated[int | None, typer.Option(help="Reproduces an answer.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Milliseconds until the call fails.", min=1)] = None,
    tls: Tls = False,
    ca_file: CaFile = "",
    client_certificate: ClientCertificate = "",
    client_key: ClientKey = "",
    client_token_file: ClientTokenFile = "",
) -> None:
    """Stream one answer to standard output, and its speed to standard error.

    With --model FILE (or --model-path) the answer is computed in this process, without a server; then every setting
    of `magnitude serve` is a flag here too.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if raw and system:
        raise InvalidRequestError("--raw takes no --system.", remedy="Write it into the prompt.", field="system")
    messages = [{"role": "system", "content": system}] if system else []
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given: Any = text if raw else [*messages, {"role": "user", "content": text}]
    seconds = None if timeout is None else timeout / 1000
    reach = Connection(tls, ca_file, client_certificate, client_key, client_token_file)
    flags: Mapping[str, object] = context.obj or {}
    with _server(address, flags) as where:
        connection = PLAIN if "model" in flags else reach
        ask(where, given, connection=connection, timeout_seconds=seconds, **options)


def ask(address: str, prompt: Any, *, connection: Connection = PLAIN, **options: Any) -> None:
    """`show_stream`, with errors of ours. Raises MagnitudeError."""
    from magnitude_service.config import quieten_grpc

    quieten_grpc()
    from magnitude.errors import CallError

    try:
        show_stream(address, prompt, connection=connection, **options)
    except CallError as error:
        raise as_ours(error, address) from error


def show_stream(address: str, prompt: Any, *, connection: Connection = PLAIN, **options: Any) -> None:
    """Prints the answer as it comes, then tokens per second. Raises CallError of the client."""
    with connection.client(address) as client, client.stream(prompt, **options) as stream:
        for piece in stream.texts():
            print(piece, end="", flush=True)
        print(flush=True)
        finished = stream.finished
        if finished is not None:
            usage, timings = finished.usage, finished.timings
            speeds = (
                f"prompt {usage.prompt_tokens} tokens, {_rate(usage.prompt_tokens, timings.prefill_ms)}",
                f"answer {usage.completion_tokens} tokens, {_rate(usage.completion_tokens - 1, timings.decode_ms)}",
            )
            print(f"[{'; '.join(speeds)}]", file=sys.stderr)


def _rate(tokens: int, milliseconds: float) -> str:
    return f"{tokens / milliseconds * 1e3:.1f} tokens/s" if tokens > 0 and milliseconds > 0 else "too few to time"


@contextlib.contextmanager
def _server(address: str, flags: Mapping[str, object]) -> Iterator[str]:
    """The address to ask: the given one, or that of a server in this process, on a free loopback port."""
    from magnitude_service import config

    config_file = str(flags["config"]) if "config" in flags else None
    flags = {name: value for name, value in flags.items() if name != "config"}
    if "model" in flags:
        from magnitude_service.app import in_process

        config.quieten_grpc()
        with in_process(config.load({**flags, **IN_PROCESS}, config_file=config_file)) as port:
            yield f"127.0.0.1:{port}"
        return
    configuration = config.load(flags, config_file=config_file)
    for name in flags.keys() - CLIENT_SETTINGS:
        raise ConfigurationError(
            f"--{name} is a setting of the server.", remedy="Give it to `magnitude serve`, or add --model.", field=name
        )
    if flags:
        from magnitude_service.server.options import ServerOptions

        server = configuration.layer(ServerOptions)
        address = f"{server.host}:{server.port}"
    yield address


def as_ours(error: CallError, address: str, otherwise: str = "answer here with `--model FILE`") -> MagnitudeError:
    """The error of ours with the same gRPC code, and so with its exit status. `otherwise`: what needs no server."""
    kinds = {kind.code: kind for kind in MagnitudeError.__subclasses__()}
    kind = kinds.get(error.code.name, MagnitudeError)
    if kind is UnavailableError and not error.reason:  # no server of ours has said so
        return UnavailableError(
            f"Nobody answers at {address} ({error.message}).",
            remedy=f"Start a server with `magnitude serve --model FILE`, or {otherwise}.",
        )
    if kind is DeadlineExceededError and not error.reason:  # the client's own clock
        return DeadlineExceededError("The answer took longer than --timeout allows.", remedy="Raise it.")
    return kind(error.message or error.code.name, reason=error.reason)
