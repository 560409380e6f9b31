"""A writer is killed by SIGKILL at random moments of saves and background compactions, again and again on one file."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from magnitude_service.snapshot.compaction import new_path
from magnitude_service.snapshot.sidecar import sidecar_path
from tests.crash import writer
from tests.support import gguf_bytes
from tests.support.serving import environment

LONGEST_SECONDS = 0.15


def kill_after(model: Path, state: str, seed: int, seconds: float) -> tuple[dict[str, int], dict[str, int]]:
    """Runs a writer for so long; the last version of each session that it began, and that it ended."""
    command = [sys.executable, "-m", "tests.crash.writer", str(model), state, str(seed)]
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        time.sleep(seconds)  # the moment is what is tried here
        process.kill()
        for line in process.stdout:
            if line.endswith("\n"):
                kind, session_id, version = line.split()
                (begun if kind == "begin" else ended)[session_id] = int(version)
    return begun, ended


def campaign(folder: Path, state: str, times: int, seed: int) -> int:
    """Kills so often; returns how often that came in the middle of the compaction of a sidecar."""
    model = gguf_bytes.write_model(folder / "M.gguf")
    model_bytes = model.read_bytes()
    chance = random.Random(seed)
    certain: dict[str, int] = {}
    saves = unfinished = 0
    for number in range(times):
        begun, ended = kill_after(model, state, seed + number, chance.random() * LONGEST_SECONDS)
        certain |= ended
        saves += len(ended)
        unfinished += new_path(sidecar_path(model, "")).exists()
        with StateSnapshotManager(model, SnapshotOptions(state=state), read_only=True) as manager:
            for session_id, version in certain.items():
                saved = manager.restore(session_id)
                assert saved.passed_over == ()
                assert saved.snapshot.version in (version, begun.get(session_id, version))
                for snapshot in manager.list(session_id, all_versions=True).snapshots:
                    found = manager.restore(session_id, snapshot.version).agent_state.tobytes()
                    assert found == writer.content(session_id, snapshot.version)
                certain[session_id] = saved.snapshot.version
        assert model.read_bytes()[: len(model_bytes)] == model_bytes
    assert saves > times / 2, "the writer did write before it was killed"
    print(f"{times} kills, {unfinished} of them while a sidecar was compacted; {saves} sessions saved between them")
    return unfinished


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_what_a_killed_writer_acknowledged_is_there(tmp_path: Path, state: str) -> None:
    campaign(tmp_path, state, times=10, seed=1)


@pytest.mark.heavy
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_thousand_kills_lose_nothing(tmp_path: Path, state: str) -> None:
    unfinished = campaign(tmp_path, state, times=500, seed=1000)
    assert unfinished >= (20 if state == "sidecar" else 0)
