"""Every client does what scenarios.json says, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from magnitude.client import SERVICE_CONFIG
from tests.conformance.conftest import Secured
from tests.conformance.toolchains import BUILD_SECONDS_MAX, BUILDS, CLIENTS, IN_CI
from tests.support.serving import Served

SCENARIOS = Path(__file__).parent / "scenarios.json"
NAMES = [scenario["name"] for scenario in json.loads(SCENARIOS.read_text(encoding="utf-8"))]

SERVICE_CONFIGS = [
    "cpp/src/service_config.h",
    "go/service_config.json",
    "java/src/main/resources/dev/magnitude/client/service_config.json",
    "typescript/src/service_config.ts",
]
"""All but that of Rust, whose library reads none."""

LANGUAGES = [pytest.param(name, marks=() if name in IN_CI else pytest.mark.heavy) for name in BUILDS]


pytestmark = pytest.mark.timeout(BUILD_SECONDS_MAX)


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a client's program, once it is built."""
    return BUILDS[request.param](tmp_path_factory.mktemp(request.param))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)


def assert_passed(done: subprocess.CompletedProcess[str], names: list[str]) -> None:
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == [], done.stderr
    assert [line.removeprefix("ok ").rsplit(" (", 1)[0] for line in lines] == names, done.stderr
    assert done.returncode == 0, done.stderr


def test_a_client_passes_every_scenario(program: list[str], server: Served) -> None:
    assert_passed(run(*program, server.address, SCENARIOS), NAMES)


def test_a_client_speaks_tls_and_shows_its_token(program: list[str], secured: Secured, tmp_path: Path) -> None:
    few = [scenario for scenario in json.loads(SCENARIOS.read_text()) if scenario["kind"] in ("unary", "refused")]
    (tmp_path / "few.json").write_text(json.dumps(few))
    trusting = [*program, "--ca", secured.authority]
    right = run(*trusting, "--token", secured.token, secured.address, tmp_path / "few.json")
    assert_passed(right, [scenario["name"] for scenario in few])
    wrong = run(*trusting, "--token", "a-token-that-nobody-was-given-0000", secured.address, tmp_path / "few.json")
    assert wrong.returncode == 1
    assert re.findall(r"^(ok|FAILED) ", wrong.stdout, re.MULTILINE) == ["FAILED"] * len(few)


def test_a_failure_is_told_and_ends_with_status_1(server: Served, tmp_path: Path) -> None:
    """Or else none of the above would mean anything; the others' programs are built like this one."""
    wrong = json.loads(SCENARIOS.read_text(encoding="utf-8"))[:1]
    wrong[0]["expect"]["completionTokens"] += 1
    (tmp_path / "wrong.json").write_text(json.dumps([*wrong, {"name": "new", "kind": "unheard-of"}]))
    done = run(*BUILDS["python"](tmp_path), server.address, tmp_path / "wrong.json")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["FAILED unary", "FAILED new"]
    assert done.returncode == 1


@pytest.mark.parametrize("file", SERVICE_CONFIGS)
def test_every_client_retries_alike(file: str) -> None:
    text = (CLIENTS / file).read_text(encoding="utf-8")
    begin = text.rindex("{", 0, text.index('"loadBalancingConfig"'))
    found, _ = json.JSONDecoder().raw_decode(text, begin)
    assert found == json.loads(SERVICE_CONFIG)
