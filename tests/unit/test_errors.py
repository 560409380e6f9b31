"""Errors say what to do about them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import magnitude_service
from magnitude_service import errors

ROOT = Path(magnitude_service.__file__).parent
FILES = sorted({*ROOT.glob("scheduling/*.py"), *ROOT.glob("server/*.py"), *ROOT.glob("cli/state*.py")})
OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and name != "CancelledError"}
"""Whoever hears that a call was cancelled has cancelled it."""


def made_errors(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OURS:
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_error_of_a_request_or_a_session_has_a_remedy(path: Path) -> None:
    without = [
        f"{path.name}:{call.lineno}"
        for call in made_errors(path)
        if "remedy" not in {keyword.arg for keyword in call.keywords}
    ]
    assert without == []


def test_the_errors_are_found() -> None:
    assert sum(len(list(made_errors(path))) for path in FILES) > 50
