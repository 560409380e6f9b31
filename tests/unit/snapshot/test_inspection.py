from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_service.errors import NotFoundError, PreconditionError
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from magnitude_service.snapshot.inspection import check, dump
from tests.crash.workload import header
from tests.support import gguf_bytes


@pytest.fixture(params=["sidecar", "model"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    options = SnapshotOptions(state=request.param, state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:
        for session_id in ("one", "two", "one"):
            manager.save(header(session_id), agent_state=session_id.encode() * 2000)
        manager.delete("two")
        return manager.path


def test_a_sound_file_has_no_findings(path: Path) -> None:
    assert check(path) == []


def test_a_damaged_blob_is_found_wherever_it_lies(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"oneoneone") + 100] ^= 1
    path.write_bytes(data)
    [finding] = check(path)
    assert (finding.session_id, finding.version) == ("one", 1)
    assert finding.problem == "the checksum of agent_state is wrong"


def test_a_damaged_header_is_found(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"MAGSTATE", 65_536 + 8)] ^= 1
    path.write_bytes(data)
    assert [finding.problem for finding in check(path)] == ["its header is damaged"]


def test_a_dump_has_a_line_for_every_segment(path: Path) -> None:
    lines = [line for line in dump(path) if not line.startswith(" ")]
    assert [line.split("  ")[2].split(" of ")[0] for line in lines] == [
        *("LOG", "SNAPSHOT", "SNAPSHOT", "SNAPSHOT", "DELETION", "INDEX")
    ]
    assert lines[1].endswith("one version 1, floor 1, live")
    assert lines[2].endswith("two version 1, floor 1, dead")


def test_a_dump_says_below_each_segment_where_its_parts_lie_and_what_it_says(path: Path) -> None:
    data = path.read_bytes()
    parts = [line.split(maxsplit=1) for line in dump(path) if line.startswith(" ")]
    [first, *_] = [int(offset, 16) for offset, what in parts if what.startswith("agent_state of 6,000 bytes, CRC ")]
    assert data[first : first + 6000] == b"one" * 2000
    words = [what for _, what in parts]
    assert "deletes all versions of two" in words
    assert "lists 2 live versions and 2 dead segments" in words
    assert any(what.startswith("begun by magnitude ") for what in words)
    assert words.count("end mark") == 6


def test_a_dump_goes_on_behind_a_damaged_segment(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"MAGSTATE", 65_536 * 2) + 256] ^= 1
    path.write_bytes(data)
    lines = list(dump(path))
    assert sum("its bytes have another CRC" in line for line in lines) == 1
    assert "INDEX" in "".join(lines)


def test_a_dump_shows_what_was_freed_as_holes(tmp_path: Path) -> None:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with StateSnapshotManager(model, SnapshotOptions(state="model", state_punch_after_seconds=0)) as manager:
        for session_id in ("one", "two"):
            manager.save(header(session_id), agent_state=bytes(200_000))
        manager.delete("one")
        manager.compact()
    assert any("hole of" in line for line in dump(model))
    assert check(model) == []


def test_what_is_no_state_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "x.state.gguf"
    other.write_bytes(b"something")
    with pytest.raises(PreconditionError, match="no file of sessions"):
        check(other)
    with pytest.raises(NotFoundError):
        list(dump(tmp_path / "none.state.gguf"))
