"""One writer per file, whoever else asks; readers beside it, without its lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnitude_service.errors import PreconditionError
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from tests.crash.workload import header
from tests.support import gguf_bytes
from tests.support.serving import environment

HOLDER = """
import sys
from pathlib import Path
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
manager = StateSnapshotManager(Path(sys.argv[1]), SnapshotOptions(state=sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_bytes.write_model(tmp_path / "M.gguf")


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_second_process_is_refused_until_the_first_is_gone_however_it_went(model: Path, state: str) -> None:
    options = SnapshotOptions(state=state)
    command = [sys.executable, "-c", HOLDER, str(model), state]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        with pytest.raises(PreconditionError, match=f"written by another process \\(pid {process.pid}\\)") as caught:
            StateSnapshotManager(model, options)
        assert caught.value.reason == "STATE_FILE_LOCKED"
        process.kill()
    with StateSnapshotManager(model, options) as manager:
        manager.save(header("one"), agent_state=b"mine now")


def test_a_second_manager_of_one_process_is_refused_too_and_close_gives_the_lock_back(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        saved = manager.save(header("one"), agent_state=b"kept")
        held = manager.restore("one")
        with pytest.raises(PreconditionError, match="written by another process"):
            StateSnapshotManager(model)
    with StateSnapshotManager(model) as manager:
        assert manager.get("one") == saved
    assert held.agent_state.tobytes() == b"kept", "a view outlives its manager"


def test_the_lock_stays_with_the_writer_through_compaction(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        manager.save(header("one"), agent_state=b"1")
        manager.compact()
        with pytest.raises(PreconditionError, match="written by another process"):
            StateSnapshotManager(model)
        manager.save(header("one"), agent_state=b"2")
    with StateSnapshotManager(model, read_only=True) as reader:
        assert reader.restore("one").agent_state.tobytes() == b"2"


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_reader_follows_the_writer_through_saves_deletions_and_compaction(model: Path, state: str) -> None:
    options = SnapshotOptions(state=state, state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:
        manager.save(header("one"), agent_state=b"1" * 9000)
        with StateSnapshotManager(model, options, read_only=True) as reader:
            first = reader.restore("one")
            for version in range(2, 6):
                manager.save(header("one"), agent_state=b"%d" % version * 9000)
                assert reader.restore("one").agent_state.tobytes() == b"%d" % version * 9000
            manager.delete("one", [2, 3])
            manager.compact()
            assert [each.version for each in reader.list(all_versions=True).snapshots] == [1, 4, 5]
            assert first.agent_state.tobytes() == b"1" * 9000
            with pytest.raises(PreconditionError, match="reading only"):
                reader.save(header("one"), agent_state=b"")


def test_a_file_replaced_while_it_is_opened_is_opened_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction of a writer that then ends: we have opened the old file, but must not write to it."""
    path = model.with_name("M.state.gguf")
    with StateSnapshotManager(model) as manager:
        manager.save(header("one"), agent_state=b"old")
    copy = path.read_bytes()
    from magnitude_service.snapshot.vfs import OperatingSystem, OperatingSystemFile

    class Replacing(OperatingSystem):
        is_done = False

        def open(self, path: Path, *, writable: bool, create: bool = False) -> OperatingSystemFile:
            file = super().open(path, writable=writable, create=create)
            if not self.is_done:
                self.is_done = True
                path.with_suffix(".other").write_bytes(copy)
                os.rename(path.with_suffix(".other"), path)
            return file

    with StateSnapshotManager(model, file_system=Replacing()) as manager:
        manager.save(header("one"), agent_state=b"new")
    with StateSnapshotManager(model, read_only=True) as reader:
        assert reader.restore("one").agent_state.tobytes() == b"new"
