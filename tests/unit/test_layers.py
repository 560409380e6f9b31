"""The design's table of imports, held by parsing every module, lazy imports and those for annotations included.

Wider than the design's table, each for a reason:

- `options` (how a dataclass declares a setting) may be imported by every layer that has settings, and imports `errors`.
- `exporter`, `observer` and `monitoring` are parts of `app` that stand in files of their own.
- `config` finds the layers' dataclasses by the names in its own table, so that a command loads only those it needs.
- `gguf`, the oracle of dequantisation, is imported by the reference executor when it is built, and by the generator of
  the type table, which no other module imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "magnitude_service"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "metrics": set(),
    "options": {"errors"},
    "formats": {"errors"},
    "kernels": {"formats", "errors"},
    "text": {"formats", "errors", "options"},
    "snapshot": {"formats", "errors", "options"},
    "loader": {"formats", "errors", "options"},
    "engine": {"loader", "kernels", "errors", "options"},
    "allocator": {"loader", "engine", "errors", "options"},
    "scheduling": {"engine", "allocator", "snapshot", "metrics", "errors", "options"},
    "server": {"scheduling", "text", "metrics", "errors", "options"},
    "config": {"errors", "options"},
    "exporter": {"metrics", "errors"},
    "observer": {"metrics", "scheduling"},
    "monitoring": {"errors", "metrics", "observer", "exporter", "scheduling", "engine", "loader"},
}
"""Which of our packages each may import."""

BELOW_APP = set(MAY_IMPORT)
MAY_IMPORT["app"] = BELOW_APP
MAY_IMPORT["cli"] = BELOW_APP | {"app"}

ONLY_IN: dict[str, set[str]] = {
    "grpc": {"server"},
    "grpc_health": {"server"},
    "grpc_reflection": {"server"},
    "grpc_status": {"server"},
    "google": {"server", "snapshot"},
    "magnitude.v1": {"server", "snapshot"},
    "magnitude": {"server", "snapshot", "cli"},
    "asyncio": {"server", "app"},
    "prometheus_client": {"exporter"},
    "typer": {"cli"},
    "rich": {"cli"},
    "jinja2": {"text"},
    "gguf": {"engine", "formats"},
    "pickle": set(),
}
"""Packages from outside that belong to some layers alone; the command line reaches servers through the client only."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "__init__":
            yield parts[0], path


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_every_package_stands_in_the_table() -> None:
    assert {package for package, _ in modules()} <= MAY_IMPORT.keys()


@pytest.mark.parametrize(("package", "path"), list(modules()), ids=lambda value: str(value).removeprefix(f"{ROOT}/"))
def test_imports_keep_to_the_table(package: str, path: Path) -> None:
    allowed = MAY_IMPORT[package] | {package, "__version__"}
    for name in imported(path):
        if name.startswith("magnitude_service."):
            assert name.split(".")[1] in allowed, f"{path} imports {name}"
        for outside, packages in ONLY_IN.items():
            if f"{name}.".startswith(f"{outside}."):
                assert package in packages, f"{path} imports {name}"


def test_no_architecture_imports_another() -> None:
    folder = ROOT / "engine" / "architectures"
    for path in folder.glob("*.py"):
        if path.stem != "__init__":
            found = [name for name in imported(path) if name.startswith("magnitude_service.engine.architectures")]
            assert found == [], path


def test_no_module_evaluates_text_or_names_modules_from_data() -> None:
    for package, path in modules():
        for node in nodes(path):
            if isinstance(node, ast.Name):
                assert node.id not in ("eval", "exec", "__import__"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and package != "config":
                assert node.attr != "import_module", f"{path}:{node.lineno}"


def test_only_config_reads_the_environment() -> None:
    for package, path in modules():
        if package != "config":
            for node in nodes(path):
                read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
                assert not read, f"{path}:{node.lineno} reads the environment"
