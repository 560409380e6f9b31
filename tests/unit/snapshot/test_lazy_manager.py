"""A state file that is opened when it is needed: by nobody, by one who reads, by one who saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import NotFoundError, PreconditionError, UnavailableError
from magnitude_service.snapshot import LazyManager, SnapshotOptions, StateSnapshotManager


def header(session_id: str = "s") -> snapshot_pb2.StateHeader:
    return snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id=session_id))


def test_who_only_looks_makes_no_file(tmp_path: Path) -> None:
    states = LazyManager(tmp_path / "m.gguf", SnapshotOptions())
    assert states.reader() is None
    states.open_what_is_there()
    states.close()
    assert list(tmp_path.iterdir()) == []


def test_who_saves_can_be_read_at_once_and_after_the_end(tmp_path: Path) -> None:
    states = LazyManager(tmp_path / "m.gguf", SnapshotOptions())
    states.writer().save(header(), agent_state=b"x")
    reader = states.reader()
    assert reader is states.writer()
    assert states.statistics().saves == 1
    states.close()
    again = LazyManager(tmp_path / "m.gguf", SnapshotOptions())
    reader = again.reader()
    assert reader is not None
    saved = reader.restore("s")
    assert again.writer() is not reader, "it saves only when asked to"
    assert saved.agent_state.tobytes() == b"x", "what was read stays valid"
    again.close()


def test_what_another_process_writes_can_be_read_and_not_written(tmp_path: Path) -> None:
    with StateSnapshotManager(tmp_path / "m.gguf") as owner:
        owner.save(header(), agent_state=b"x")
        states = LazyManager(tmp_path / "m.gguf", SnapshotOptions())
        with pytest.raises(PreconditionError) as caught:
            states.writer()
        assert caught.value.reason == "STATE_FILE_LOCKED"
        reader = states.reader()
        assert reader is not None
        assert reader.restore("s").agent_state.tobytes() == b"x"
        states.open_what_is_there()  # says so in the log, and nothing else
    assert states.writer().save(header()).version == 2, "when the other one has gone, it is tried again"
    states.close()


def test_a_folder_that_is_not_there_is_an_error_of_who_saves(tmp_path: Path) -> None:
    states = LazyManager(tmp_path / "m.gguf", SnapshotOptions(state_dir=str(tmp_path / "missing")))
    assert states.reader() is None
    with pytest.raises(NotFoundError):
        states.writer()
    states.close()


def test_after_the_end_everybody_hears_that_it_is_closed(tmp_path: Path) -> None:
    states = LazyManager(tmp_path / "m.gguf", SnapshotOptions())
    states.writer()
    states.close()
    states.close()
    for call in (states.writer, states.reader):
        with pytest.raises(UnavailableError):
            call()
