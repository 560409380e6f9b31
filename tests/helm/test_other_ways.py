"""The systemd unit and the compose file: their flags are the server's, and they wait longer than it drains."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnitude_service import config
from magnitude_service.cli.flags import flag_parser
from magnitude_service.errors import MagnitudeError

HELM = Path(__file__).parents[2] / "helm"


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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_finds_the_unit_well_confined() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", HELM / "magnitude.service"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_compose_gives_shared_memory_and_time() -> None:
    service = yaml.safe_load((HELM / "docker-compose.yaml").read_text(encoding="utf-8"))["services"]["magnitude"]
    assert service["shm_size"] == "2gb"
    loaded = config.load(flags(service["command"]), environment={})
    assert int(service["stop_grace_period"].removesuffix("s")) > loaded.layer(config.AppOptions).grace_seconds
    assert (HELM / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
