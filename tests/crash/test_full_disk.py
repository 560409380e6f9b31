"""A disk that is really full, and a process whose files may not grow."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude_service.errors import PreconditionError
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from tests.crash.workload import header
from tests.support import gguf_bytes

DISK_BYTES = 4 << 20


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 4 MiB. Skips where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file grows beyond `size` by this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(manager: StateSnapshotManager) -> int:
    """Saves until nothing fits any more; how many were acknowledged."""
    for count in range(1000):
        try:
            manager.save(header(f"s{count}"), agent_state=os.urandom(300_000))
        except PreconditionError as error:
            if error.reason == "STORAGE_FULL":
                return count
            raise
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_on_a_full_disk_all_that_was_saved_is_read_and_a_deletion_makes_room(tmp_path: Path, state: str) -> None:
    with small_disk(tmp_path / "disk") as folder:
        model = gguf_bytes.write_model(folder / "M.gguf")
        options = SnapshotOptions(state=state, state_punch_after_seconds=0)
        with StateSnapshotManager(model, options) as manager:
            count = fill(manager)
            assert count >= 5
            assert len(manager.list(page_size=1000).snapshots) == count
            if state == "model":  # a hole is made at once; a copy of a sidecar needs its own room
                manager.delete("s0")
                manager.compact()
                manager.save(header("again"), agent_state=b"fits")
                assert manager.restore("again").agent_state.tobytes() == b"fits"
        with StateSnapshotManager(model, options, read_only=True) as reader:
            assert reader.restore(f"s{count - 1}").snapshot.version == 1


def test_a_limit_on_file_size_is_a_full_disk(tmp_path: Path) -> None:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with StateSnapshotManager(model) as manager:
        with files_of_at_most(2 << 20):
            count = fill(manager)
        manager.save(header("later"), agent_state=b"the limit is gone")
    with StateSnapshotManager(model) as manager:
        assert manager.findings == ()
        assert len(manager.list(page_size=1000).snapshots) == count + 1
