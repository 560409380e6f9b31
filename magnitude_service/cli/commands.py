"""The typer application: the commands and their order in `--help`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from magnitude_service.cli.health import health
from magnitude_service.cli.infer import infer, split_settings
from magnitude_service.cli.inspect import inspect
from magnitude_service.cli.pull import pull
from magnitude_service.cli.state import state
from magnitude_service.cli.version import version
from magnitude_service.errors import InvalidRequestError

app = typer.Typer(
    help="Serve GGUF language models over gRPC, straight from the mapped file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit status. Raises MagnitudeError; wrong use is one too."""
    arguments = list(arguments)
    settings: dict[str, object] = {}
    if arguments[:1] == ["infer"]:
        settings, rest = split_settings(arguments[1:])
        arguments = ["infer", *rest]
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name="magnitude", standalone_mode=False, obj=settings)
    except typer.Abort:
        return 130
    except Exception as error:
        # typer's usage errors have no public base in all of its versions; they all can show themselves.
        if not hasattr(error, "format_message"):
            raise
        message = str(error.format_message())
        if not message or message.startswith("Usage"):  # no arguments at all: help was wanted
            typer.echo(message)
            return 0
        where = getattr(getattr(error, "ctx", None), "command_path", "magnitude")
        raise InvalidRequestError(f"{message.rstrip('.')}.", remedy=f"See `{where} --help`.") from error
    return status if isinstance(status, int) else 0


@app.command("serve", add_help_option=False, short_help="Serve a model over gRPC.")
def _serve(_: Annotated[list[str] | None, typer.Argument(metavar="[--NAME VALUE …]")] = None) -> None:
    """Serve a model over gRPC; `magnitude serve --help` lists every setting."""
    raise AssertionError("main runs serve")


app.command("infer", no_args_is_help=True, short_help="Stream one answer.")(infer)
app.command("health", short_help="Ask a server how it is.")(health)
app.command("inspect", no_args_is_help=True, short_help="Show and verify a model file.")(inspect)
app.command("pull", no_args_is_help=True, short_help="Fetch a model file, once.")(pull)
app.add_typer(state, name="state", short_help="Show, move and check saved sessions.")
app.command("version", short_help="Print version, platform and kernels.")(version)
