"""The systemd unit and the compose file: their flags are the server's, and they wait longer than it drains."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnitude_service import config
from magnitude_service.cli.flags import flag_parser
from magnitude_service.errors import MagnitudeError
from magnitude_service.snapshot.options import SnapshotOptions

HELM = Path(__file__).parents[2] / "helm"

Program = Callable[[str], Path]

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")


def flags(command: list[str]) -> dict[str, Any]:
    """What `magnitude serve` is told. Raises ConfigurationError for what it does not know."""
    assert command[0] == "serve"
    given = vars(flag_parser("magnitude serve", "").parse_args(command[1:]))
    return {name: value for name, value in given.items() if name != "config"}


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((HELM / "magnitude.service").read_text(encoding="utf-8"))
    return parser["Service"]


def test_the_unit_waits_for_running_streams() -> None:
    command = shlex.split(unit()["ExecStart"])
    loaded = config.load(flags(command[1:]), environment={})
    assert int(unit()["TimeoutStopSec"]) > loaded.layer(config.AppOptions).grace_seconds


def test_the_unit_starts_again_only_where_that_helps() -> None:
    prevented = {int(status) for status in unit()["RestartPreventExitStatus"].split()}
    for kind in MagnitudeError.__subclasses__():
        helps = kind.code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL")
        assert (kind.exit_code in prevented) != helps, kind.__name__


def test_the_settings_that_the_unit_asks_for_are_settings(tmp_path: Path) -> None:
    text = (HELM / "magnitude.service").read_text(encoding="utf-8")
    lines = re.findall(r'^#     (\w+ = "[^"]*")', text, re.MULTILINE)
    assert len(lines) == 2
    (tmp_path / "magnitude.toml").write_text("\n".join(lines), encoding="utf-8")
    loaded = config.load(flags(["serve"]), environment={}, config_file=str(tmp_path / "magnitude.toml"))
    assert Path(loaded.layer(SnapshotOptions).state_dir) == Path("/var/lib") / unit()["StateDirectory"]


def verified(text: str, folder: Path) -> str:
    """What systemd says about a unit whose program is there."""
    program = folder / "magnitude"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = folder / "magnitude.service"
    file.write_text(text.replace("/opt/magnitude/bin/magnitude", str(program)), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    return done.stdout + done.stderr


@needs_systemd
def test_systemd_takes_every_line_of_the_unit(tmp_path: Path) -> None:
    text = (HELM / "magnitude.service").read_text(encoding="utf-8")
    assert verified(text, tmp_path) == ""
    for right, wrong in (("TimeoutStopSec=", "TimeoutStopSecs="), ("CPUQuota=400%", "CPUQuota=4 cores")):
        assert verified(text.replace(right, wrong), tmp_path) != "", wrong


@needs_systemd
def test_systemd_finds_the_unit_well_confined() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", HELM / "magnitude.service"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def composed(reader: Path, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What docker compose's own library makes of a file with this text; the variable in it is ours to fill in."""
    file = folder / "docker-compose.yaml"
    file.write_text(re.sub(r"\$\{MODEL:[^}]*\}", "/models/M.gguf", text), encoding="utf-8")
    return subprocess.run([reader, "-format", "json", file], capture_output=True, text=True)


def test_compose_takes_every_line_of_the_file(program: Program, tmp_path: Path) -> None:
    text = (HELM / "docker-compose.yaml").read_text(encoding="utf-8")
    done = composed(program("compose-spec"), tmp_path, text)
    assert done.returncode == 0, done.stderr
    service = json.loads(done.stdout)["services"]["magnitude"]
    model, state = service["volumes"]
    assert (model["source"], model["target"], model["read_only"]) == ("/models/M.gguf", "/models/model.gguf", True)
    assert (state["type"], state.get("read_only", False)) == ("volume", False), "sessions are written there"
    assert service["command"][service["command"].index("--state-dir") + 1] == state["target"]
    for right, wrong in (("shm_size", "shm-size"), ("[ALL]", "ALL"), (":9090", ":metrics")):
        assert composed(program("compose-spec"), tmp_path, text.replace(right, wrong)).returncode != 0, wrong


def test_compose_gives_shared_memory_and_time() -> None:
    service = yaml.safe_load((HELM / "docker-compose.yaml").read_text(encoding="utf-8"))["services"]["magnitude"]
    assert service["shm_size"] == "2gb"
    loaded = config.load(flags(service["command"]), environment={})
    assert int(service["stop_grace_period"].removesuffix("s")) > loaded.layer(config.AppOptions).grace_seconds
    assert (HELM / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
