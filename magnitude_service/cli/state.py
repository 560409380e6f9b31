"""`magnitude state`: the saved sessions of a state file, or of a server that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from magnitude_service.cli.state_sources import Exported, source, state_file
from magnitude_service.errors import IntegrityError, InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from magnitude_service.snapshot.recovery import Finding

state = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

File = Annotated[
    str | None,
    typer.Argument(help="M.state.gguf, or a model with a tail. Absent: the server is asked.", show_default=False),
]
Session = Annotated[str, typer.Argument(help="Session id.", show_default=False)]
Version = Annotated[int | None, typer.Option(help="Its number. Absent: the latest.", min=1)]
Model = Annotated[str, typer.Option(help="The server's model, by name. Empty: its default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StateFile = Annotated[str, typer.Argument(help="M.state.gguf, or a model with a tail.", show_default=False)]


@state.callback()
def connect(
    context: typer.Context,
    tls: Tls = False,
    ca_file: CaFile = "",
    client_certificate: ClientCertificate = "",
    client_key: ClientKey = "",
    client_token_file: ClientTokenFile = "",
) -> None:
    """Show, move and check saved sessions, of a file or of a server; the flags here say how that is reached."""
    context.obj = Connection(tls, ca_file, client_certificate, client_key, client_token_file)


@state.command("list")
def list_(
    context: typer.Context,
    file: File = None,
    session: Annotated[str, typer.Option(help="Only of this session.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="Only with this label, NAME=VALUE; may be repeated.")] = None,
    all_versions: Annotated[bool, typer.Option("--all", help="Older versions than the latest, too.")] = False,
    as_json: AsJson = False,
    address: Address = ADDRESS,
    model: Model = "",
) -> None:
    """List saved sessions: id, version, when, tokens, bytes, labels."""
    with source(context.obj, file, address, model, read_only=True) as found:
        for snapshot in found.list(session, _labels(label or []), all_versions):
            typer.echo(json.dumps(_plain(snapshot), ensure_ascii=False) if as_json else _line(snapshot))


@state.command()
def show(
    context: typer.Context,
    session: Session,
    file: File = None,
    version: Version = None,
    as_json: AsJson = False,
    address: Address = ADDRESS,
    model: Model = "",
) -> None:
    """Show one version: what it is, and which model it belongs to."""
    with source(context.obj, file, address, model, read_only=True) as found:
        plain = _plain(found.show(session, version))
    if as_json:
        typer.echo(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n".join(f"{name:<20} {value}" for name, value in plain.items()))


@state.command()
def export(
    context: typer.Context,
    session: Session,
    output: Annotated[str, typer.Argument(help="File to make, NAME.state.gguf.", show_default=False)],
    file: File = None,
    version: Version = None,
    address: Address = ADDRESS,
    model: Model = "",
) -> None:
    """Put one version into a state file of its own, every byte of it checked."""
    from magnitude_service.snapshot.state_file import write_state_file

    with source(context.obj, file, address, model, read_only=True) as found:
        taken = found.export(session, version)
        write_state_file(Path(output), taken.header, taken.blobs)
    typer.echo(f"{output}: {_line(taken.header.snapshot)}")


@state.command("import")
def import_(
    context: typer.Context,
    exported: Annotated[str, typer.Argument(help="A state file, as export makes it.", show_default=False)],
    file: File = None,
    session: Annotated[str, typer.Option(help="Which of its sessions; needed where it has several.")] = "",
    version: Version = None,
    as_session: Annotated[str, typer.Option("--as", help="Session that it becomes. Empty: of its own name.")] = "",
    address: Address = ADDRESS,
    model: Model = "",
) -> None:
    """Save a version of another state file as the next version of a session."""
    with source(context.obj, exported, "", "", read_only=True) as origin:
        ids = [session] if session else [each.session_id for each in origin.list("", {}, False)]
        taken = _the_only(origin.export(ids[0], version) if len(ids) == 1 else None, exported, ids)
        with source(context.obj, file, address, model, read_only=False) as target:
            saved = target.take(taken, as_session or ids[0])
    typer.echo(_line(saved))


@state.command()
def compact(
    context: typer.Context,
    file: File = None,
    keep_versions: Annotated[
        int | None, typer.Option(help="First drop all but so many of each session.", min=1)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be given back.")] = False,
    address: Address = ADDRESS,
    model: Model = "",
) -> None:
    """Give back the bytes of deleted versions."""
    with source(context.obj, file, address, model, read_only=False) as found:
        done = found.compact(keep_versions, dry_run)
    would = "would be " if dry_run else ""
    typer.echo(
        f"{done.bytes_before:,} bytes before, {would}{done.bytes_after:,} after; "
        f"{done.dropped_versions} versions {would}dropped"
    )


@state.command()
def check(file: StateFile) -> None:
    """Read every byte of every version. Exit status 0: sound; 65: damaged, each damage in a line with its offset."""
    from magnitude_service.snapshot.inspection import check

    findings = check(state_file(file))
    for finding in findings:
        typer.echo(_finding_line(finding))
    if findings:
        raise typer.Exit(IntegrityError.exit_code)
    typer.echo(f"{file} is sound", err=True)


@state.command()
def dump(file: StateFile) -> None:
    """Print the structure: a line for each segment, live or dead, its parts below it, and for each hole."""
    from magnitude_service.snapshot.inspection import dump

    for line in dump(state_file(file)):
        typer.echo(line)


def _the_only(taken: Exported | None, file: str, ids: list[str]) -> Exported:
    if not ids:
        raise NotFoundError(
            f"{file} holds no session.",
            remedy="Name a file that `magnitude state export` made.",
            reason="SESSION_NOT_FOUND",
            file=file,
        )
    if taken is None:
        raise InvalidRequestError(
            f"{file} holds {len(ids)} sessions: {', '.join(ids[:5])}{', …' * (len(ids) > 5)}.",
            remedy="Name one with --session.",
            field="session",
        )
    return taken


def _labels(given: list[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise InvalidRequestError(f"--label {each!r} has no =.", remedy="Write NAME=VALUE.", field="labels")
    return dict(each.split("=", 1) for each in given)


def _line(snapshot: Any) -> str:
    plain = _plain(snapshot)
    size = snapshot.agent_state_bytes + snapshot.key_value_bytes
    labels = "".join(f"  {name}={value}" for name, value in plain["labels"].items())
    return (
        f"{snapshot.session_id}  version {snapshot.version}  {plain['create_time']}  {snapshot.token_count} tokens  "
        f"{size:,} bytes{labels}"
    )


def _plain(snapshot: Any) -> dict[str, Any]:
    """A Snapshot's fields in their order, as JSON has them."""
    return dict(_fields(snapshot))


def _fields(snapshot: Any) -> Iterator[tuple[str, Any]]:
    for field in snapshot.DESCRIPTOR.fields:
        value = getattr(snapshot, field.name)
        if field.has_presence and not snapshot.HasField(field.name):
            continue
        if field.name == "create_time":
            value = f"{value.ToJsonString()}"
        elif field.name == "labels":
            value = dict(sorted(value.items()))
        elif isinstance(value, bytes):
            value = value.hex()
        yield field.name, value


def _finding_line(finding: Finding) -> str:
    whose = f"  version {finding.version} of {finding.session_id}" if finding.session_id else ""
    return f"offset {finding.offset:#x} ({finding.offset}): {finding.problem}{whose}"
