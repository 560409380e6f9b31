"""The Dockerfile as it stands, without building it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Program = Callable[[str], Path]

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


def findings(hadolint: Path, file: Path) -> list[str]:
    """What hadolint says, down to matters of style; shellcheck's part of it too."""
    command = [hadolint, "--no-color", "--format", "json", "--failure-threshold", "style", file]
    done = subprocess.run(command, capture_output=True, text=True)
    found = [f"{each['line']}: {each['code']} {each['message']}" for each in json.loads(done.stdout)]
    assert (done.returncode == 0) == (not found), done.stderr
    return found


def test_hadolint_has_nothing_to_say(program: Program) -> None:
    assert findings(program("hadolint"), DOCKERFILE) == []


def test_hadolint_reads_the_commands_too(program: Program, tmp_path: Path) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    (tmp_path / "Dockerfile").write_text(f"{text}\nRUN cp $UNKNOWN /tmp\n", encoding="utf-8")
    (found,) = findings(program("hadolint"), tmp_path / "Dockerfile")
    assert "SC2086" in found
