"""`magnitude inspect`: what a GGUF file holds, and whether it is sound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude_service.errors import IntegrityError, MagnitudeError

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel


def inspect(
    path: Annotated[str, typer.Argument(help="GGUF file; any shard of a split one.", show_default=False)],
    check: Annotated[bool, typer.Option("--check", help="Verify every part; exit status 0: sound.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    allow_invalid_magic: Annotated[bool, typer.Option(help="Accept another magic, and nothing else.")] = False,
) -> None:
    """Show a model's identity, hyper-parameters and tensors; with --check, verify it.

    Exit status of --check: 0 sound, 65 damaged, 69 sound but of a kind that we cannot serve.
    """
    from magnitude_service import config
    from magnitude_service.loader import MMapModelLoader
    from magnitude_service.loader.options import LoaderOptions

    cache = config.cache_folder(config.load({}).layer(config.AppOptions).cache_dir)
    options = LoaderOptions(allow_invalid_magic=allow_invalid_magic)
    with MMapModelLoader(options, cache_folder=cache).load(path) as model:
        if as_json:
            typer.echo(json.dumps(_as_json(model, tensors), ensure_ascii=False, indent=2))
        else:
            typer.echo("\n".join(_as_text(model, tensors)))
        failures = list(_failures(model)) if check else []
    if failures:
        # A damaged file is worse news than one that we cannot serve.
        raise typer.Exit(
            next((each.exit_code for each in failures if isinstance(each, IntegrityError)), failures[0].exit_code)
        )


def _as_text(model: MappedModel, tensors: bool) -> Iterator[str]:
    spec = model.spec
    size = f"{spec.file_bytes:,} bytes, {len(spec.tensors)} tensors"
    yield f"{model.path}: GGUF v{spec.format_version}, {spec.architecture}, {size}"
    yield f"model_id {model.model_id}"
    for key in model.metadata:
        yield f"  {key} = {model.metadata.describe(key)}"
    for info in spec.tensors.values() if tensors else ():
        yield f"  {info.name}  {info.type.name}  {list(info.shape)}  {info.nbytes:,} bytes at {info.offset:,}"


def _as_json(model: MappedModel, tensors: bool) -> dict[str, object]:
    spec = model.spec
    found: dict[str, object] = {
        "path": str(model.path),
        "model_id": spec.model_id,
        "architecture": spec.architecture,
        "name": spec.name,
        "format_version": spec.format_version,
        "file_bytes": spec.file_bytes,
        "tensor_count": len(spec.tensors),
        "metadata": {key: _json_value(model, key) for key in model.metadata},
    }
    if tensors:
        found["tensors"] = [
            {
                "name": info.name,
                "type": info.type.name,
                "shape": list(info.shape),
                "bytes": info.nbytes,
                "offset": info.offset,
            }
            for info in spec.tensors.values()
        ]
    return found


def _json_value(model: MappedModel, key: str) -> object:
    """A number, a truth value or a text as it is; an array in words, for nobody wants 150,000 tokens here."""
    if model.metadata.type_of(key).startswith("array"):
        return model.metadata.describe(key)
    return model.metadata.value(key)


def _failures(model: MappedModel) -> Iterator[MagnitudeError]:
    """Verifies part after part, says on standard error how each is, and yields what is wrong."""
    parts: dict[str, Callable[[], str]] = {
        "content": lambda: f"SHA-256 {model.content_sha256(is_forced=True)}",
        "tensors": lambda: _check_tensors(model),
        "tokenizer": lambda: _check_tokenizer(model),
        "template": lambda: _check_template(model),
        "program": lambda: _check_program(model),
    }
    for name, part in parts.items():
        try:
            typer.echo(f"{name:<10} ok: {part()}", err=True)
        except MagnitudeError as error:
            typer.echo(f"{name:<10} FAILED: {error}", err=True)
            yield error


def _check_tensors(model: MappedModel) -> str:
    from magnitude_service.loader.soundness import check_finite

    return f"{check_finite(model)} of {len(model.tensors)} tensors hold finite numbers only"


def _check_tokenizer(model: MappedModel) -> str:
    from magnitude_service.text.tokenizer import Tokenizer

    return f"{Tokenizer.from_metadata(model.metadata).vocabulary_size:,} entries"


def _check_template(model: MappedModel) -> str:
    from magnitude_service.app import TEMPLATE_KEY
    from magnitude_service.text.options import TemplateOptions
    from magnitude_service.text.templates import ChatTemplate

    if TEMPLATE_KEY not in model.metadata:
        return "there is none"
    source = model.metadata.text(TEMPLATE_KEY)
    with ChatTemplate(source, bos_text="", eos_text="", options=TemplateOptions()) as template:
        template.check()
    return f"{len(source):,} characters"


def _check_program(model: MappedModel) -> str:
    from magnitude_service.engine.architectures import record

    return f"{len(record(model).instructions):,} instructions"
