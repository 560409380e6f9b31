"""The stubs that clients keep are what the contract generates; Python's are compared in tests/unit/proto."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conformance.toolchains import BUILD_SECONDS_MAX, CLIENTS, ROOT, require, run

BY_BUF = ("clients/go/v1", "clients/typescript/src/magnitude/v1")


def assert_same(kept: Path, made: Path) -> None:
    """Both folders have the same files with the same bytes."""
    assert {path.name for path in kept.iterdir()} == {path.name for path in made.iterdir()}, "run `make clients`"
    for path in made.iterdir():
        assert (kept / path.name).read_bytes() == path.read_bytes(), f"{kept / path.name}: run `make clients`"


@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_go_and_typescript_are_what_the_contract_generates(tmp_path: Path) -> None:
    require("npx", "go")
    version = re.search(r"@bufbuild/buf@[\d.]+", (ROOT / "buf.yaml").read_text())
    assert version
    command = ["npx", "--yes", version[0], "generate", "-o", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    for folder in BY_BUF:
        assert_same(ROOT / folder, tmp_path / folder)


@pytest.mark.heavy
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_rust_is_what_the_contract_generates(tmp_path: Path) -> None:
    require("cargo")
    run("rust", "cargo", "run", "--quiet", "-p", "magnitude-generate", tmp_path)
    assert_same(CLIENTS / "rust/src/v1", tmp_path)
