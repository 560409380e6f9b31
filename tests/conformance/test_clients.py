"""Every client does what scenarios.json says, against a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from magnitude.retries import SERVICE_CONFIG
from tests.conformance.conftest import Reached
from tests.conformance.toolchains import BUILD_SECONDS_MAX, BUILDS, CLIENTS, IN_CI

SCENARIOS = json.loads((Path(__file__).parent / "scenarios.json").read_text(encoding="utf-8"))
SERVERS = sorted({scenario["server"] for scenario in SCENARIOS})

REFUSED_TWICE = {
    method: 3 * calls
    for method, calls in {
        **{"Health": 1, "ListModels": 1, "Tokenize": 1, "Infer": 2, "StreamInfer": 2, "Save": 1, "List": 1},
        **{"Restore": 1, "ExportState": 1, "ImportState": 1, "Delete": 2},
    }.items()
}
"""Every call of the scenario is made until it is not refused."""

LOST_ONCE = {
    **{"Health": 2, "ListModels": 2, "Tokenize": 2, "List": 3 * 2, "Restore": 2, "ExportState": 2},
    **{"Infer": 2 + 1, "StreamInfer": 2 + 1},  # those of the session are made once
    **{"Save": 1, "ImportState": 1, "Delete": 1},
}
"""What changes nothing is asked for again; the rest may have been done."""

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


def scenarios(tmp_path: Path, server: str) -> tuple[Path, list[str]]:
    """The file of those that want this server, and their names."""
    wanted = [scenario for scenario in SCENARIOS if scenario["server"] == server]
    (tmp_path / "scenarios.json").write_text(json.dumps(wanted), encoding="utf-8")
    return tmp_path / "scenarios.json", [scenario["name"] for scenario in wanted]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_passes_every_scenario(
    program: list[str], server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    reached: Reached = request.getfixturevalue(server)
    file, names = scenarios(tmp_path, server)
    done = run(*reached.before, *program, *reached.flags, reached.address, file)
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == [], done.stderr
    assert [line.removeprefix("ok ").rsplit(" (", 1)[0] for line in lines] == names, done.stderr
    assert done.returncode == 0, done.stderr
    if server in ("refusing", "losing"):
        assert dict(reached.calls) == (REFUSED_TWICE if server == "refusing" else LOST_ONCE)


def test_a_failure_is_told_and_ends_with_status_1(plain: Reached, tmp_path: Path) -> None:
    """Or else none of the above would mean anything; the others' programs are built like this one."""
    wrong = json.loads(json.dumps(SCENARIOS[:1]))
    wrong[0]["expect"]["completionTokens"] += 1
    (tmp_path / "wrong.json").write_text(json.dumps([*wrong, {"name": "new", "kind": "unheard-of"}]))
    done = run(*BUILDS["python"](tmp_path), plain.address, tmp_path / "wrong.json")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["FAILED unary", "FAILED new"]
    assert done.returncode == 1


@pytest.mark.parametrize("file", SERVICE_CONFIGS)
def test_every_client_retries_alike(file: str) -> None:
    text = (CLIENTS / file).read_text(encoding="utf-8")
    begin = text.rindex("{", 0, text.index('"loadBalancingConfig"'))
    found, _ = json.JSONDecoder().raw_decode(text, begin)
    assert found == json.loads(SERVICE_CONFIG)
