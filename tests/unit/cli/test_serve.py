"""`magnitude serve` up to the point where it serves, and its ready line."""

from __future__ import annotations

import json
import re
import signal
import socket
import tomllib
from pathlib import Path

import pytest

from magnitude_service.cli.serve import serve
from magnitude_service.config import settings
from magnitude_service.errors import ConfigurationError, NotFoundError
from tests.support.serving import Served, eventually, magnitude, serving


def test_validate_config_prints_a_config_file_with_the_source_of_each_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "magnitude.toml"
    file.write_text("rows_max = 99\nmodel_name = 'ä\"'\n")
    monkeypatch.setenv("MAGNITUDE_MLOCK", "yes")
    assert serve(["--validate-config", "--config", str(file), "--no-mmap", "--grace-seconds", "2"]) == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown) == {
        "rows_max": 99, "model_name": 'ä"', "mlock": True, "mmap": False, "grace_seconds": 2.0
    }  # fmt: skip
    assert f"rows_max = 99  # {file}: rows_max" in shown
    assert "mlock = true  # MAGNITUDE_MLOCK" in shown
    for setting in settings():
        assert re.search(rf"^(# )?{setting.name.replace('-', '_')} = ", shown, re.MULTILINE)
    (tmp_path / "again.toml").write_text(shown)
    assert serve(["--validate-config", "--config", str(tmp_path / "again.toml")]) == 0


def test_validate_config_refuses_settings_that_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="rows_max is 4, less than the 16 of sequences_max"):
        serve(["--validate-config", "--rows-max", "4"])


def test_dry_run_says_what_it_would_cost_and_listens_nowhere(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["--dry-run", "--model", str(tiny_model), "--budget-bytes", "200000000", "--threads", "1"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["model"].startswith("tiny (llama), ")
    assert shown["weights"].endswith("bytes, mapped")
    assert shown["budget"].startswith("200,000,000 bytes")
    assert shown["threads"] == "1"


def test_dry_run_of_a_missing_file_is_refused() -> None:
    with pytest.raises(NotFoundError, match="/nowhere"):
        serve(["--dry-run", "--model", "/nowhere"])


def test_the_ready_line_has_address_model_memory_and_phases(server: Served) -> None:
    line = server.ready_line
    assert re.match(r"ready on 127\.0\.0\.1:\d+: tiny, \d+ MiB mapped, \d+ MiB for \d+ pages, 1 threads; \d+ ms", line)
    for phase in ("map", "tokenizer", "program", "memory", "executor", "imports", "listen"):
        assert re.search(rf"\b{phase} \d+ ms", line), phase


def test_an_address_that_is_taken_is_one_line_and_status_73(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = magnitude("serve", "--model", tiny_model, "--port", str(port), "--threads", "1")
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr == (
        f"magnitude: The address 127.0.0.1:{port} cannot be listened on. "
        "Stop what listens there, or choose another --port or --host.\n"
    )


def test_an_instruction_set_that_does_not_exist_is_refused(tiny_model: Path) -> None:
    done = magnitude("serve", "--model", tiny_model, "--dry-run", MAGNITUDE_CPU_ISA="sse9")
    assert done.returncode == 78
    assert done.stderr.startswith("magnitude: MAGNITUDE_CPU_ISA is 'sse9'; it must be one of empty, scalar, ")


def test_a_call_has_one_line_in_the_form_that_was_asked_for(tiny_model: Path) -> None:
    with serving(tiny_model, "--log-format", "json") as served:
        assert magnitude("infer", "--address", served.address, "--max-tokens", "1", "hi").returncode == 0
        eventually(lambda: "StreamInfer" in served.logged())
        [line] = served.logged().splitlines()
    assert json.loads(line)["code"] == "OK"


def test_calls_that_went_well_are_not_logged_from_level_warning_on(tiny_model: Path) -> None:
    with serving(tiny_model, "--log-level", "warning") as served:
        assert magnitude("infer", "--address", served.address, "--max-tokens", "1", "hi").returncode == 0
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=30) == 0
        assert served.logged() == ""
