"""Whatever the store refuses, it says what to do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from magnitude_service import errors, server, snapshot

OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
FILES = [
    *sorted(Path(snapshot.__file__).parent.glob("*.py")),
    *(Path(server.__path__[0]) / name for name in ("snapshots.py", "state_import.py", "state_streams.py")),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_error_names_a_remedy(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    raised = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in OURS]
    assert [call.lineno for call in raised if not any(each.arg == "remedy" for each in call.keywords)] == []
