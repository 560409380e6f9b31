"""No change of the contract breaks the clients of an earlier one, and a change that did would be found."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
NETWORK_FAULTS = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT")


@pytest.fixture
def breaking() -> ModuleType:
    if shutil.which("npx") is None:
        pytest.skip("npx is not installed; it fetches buf")
    spec = importlib.util.spec_from_file_location("breaking", ROOT / "proto/breaking.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copied(breaking: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The contract in a folder of its own, which is no repository."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    monkeypatch.setattr(breaking, "ROOT", tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    for command in ("init -q", "add .", "-c user.name=x -c user.email=x@y -c commit.gpgsign=false commit -q -m x"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)


def test_the_contract_breaks_no_earlier_client(breaking: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = breaking.main(), capsys.readouterr().out
    if any(fault in said for fault in NETWORK_FAULTS):
        pytest.skip("npx cannot reach the npm registry")
    assert status == 0, said


def test_a_field_that_changes_its_number_is_found(
    breaking: ModuleType, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(copied)
    assert breaking.main() == 0
    health = copied / "proto/magnitude/v1/health.proto"
    health.write_text(health.read_text().replace("string version = 1;", "string version = 9;"))
    assert breaking.main() == 1
    said = capsys.readouterr().out
    if any(fault in said for fault in NETWORK_FAULTS):
        pytest.skip("npx cannot reach the npm registry")
    assert 'on message "HealthResponse"' in said


def test_where_there_is_nothing_to_compare_with_nothing_is_broken(breaking: ModuleType, copied: Path) -> None:
    assert breaking.earlier_commits() == []
    assert breaking.main() == 0
