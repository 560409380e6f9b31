"""`magnitude state`, on files and at a server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.cli import commands
from magnitude_service.errors import (
    ConfigurationError,
    InvalidRequestError,
    MagnitudeError,
    NotFoundError,
    PreconditionError,
)
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from tests.support import gguf_bytes
from tests.support.snapshot_server import snapshot_server

AGENT = b"a draft " * 1000


def header(session_id: str, **labels: str) -> snapshot_pb2.StateHeader:
    snapshot = snapshot_pb2.Snapshot(session_id=session_id, model="tiny", token_count=3, labels=labels)
    session = snapshot_pb2.SessionState(state_version=1, token_ids=[5, 6, 7])
    return snapshot_pb2.StateHeader(snapshot=snapshot, session=session)


def fill(manager: StateSnapshotManager) -> None:
    manager.save(header("agent/one", step="search"), agent_state=b"old")
    manager.save(header("agent/two", step="read"), agent_state=b"other")
    manager.save(header("agent/one", step="write"), agent_state=AGENT, parts={"pdf": b"%PDF"}, key_value=b"pages")


@pytest.fixture(params=["sidecar", "model"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a state file: a sidecar, or a model with a tail."""
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with StateSnapshotManager(model, SnapshotOptions(state=request.param)) as manager:
        fill(manager)
        return str(manager.path)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server whose sessions have no parts."""
    with StateSnapshotManager(gguf_bytes.write_model(tmp_path / "served.gguf")) as manager:
        manager.save(header("agent/one", step="search"), agent_state=AGENT)
        manager.save(header("agent/one", step="write"), agent_state=AGENT + b"!", key_value=None)
        for number in range(3):
            manager.save(header(f"s{number}"), agent_state=b"")
        with snapshot_server(manager) as (where, _):
            yield where


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert commands.run(["state", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_list_has_the_latest_version_of_each_session_or_all(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "list", file)
    assert [line.split("  ")[:2] for line in found] == [["agent/one", "version 2"], ["agent/two", "version 1"]]
    assert found[0].endswith("3 tokens  8,009 bytes  step=write")
    assert len(lines(capsys, "list", file, "--all")) == 3
    assert len(lines(capsys, "list", file, "--session", "agent/two")) == 1
    [read] = lines(capsys, "list", file, "--label", "step=read", "--json")
    assert json.loads(read)["labels"] == {"step": "read"}


def test_show_tells_all_about_one_version(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads("\n".join(lines(capsys, "show", "agent/one", file, "--json")))
    assert (shown["version"], shown["agent_state_bytes"], shown["key_value_bytes"]) == (2, 8004, 5)
    assert "version              1" in lines(capsys, "show", "agent/one", file, "--version", "1")
    with pytest.raises(NotFoundError, match="no saved session nobody") as caught:
        commands.run(["state", "show", "nobody", file])
    assert caught.value.exit_code == 66


def test_what_is_exported_is_a_sound_file_and_comes_back_equal_by_import(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = str(tmp_path / "one.state.gguf")
    lines(capsys, "export", "agent/one", exported, file)
    assert commands.run(["state", "check", exported]) == 0
    lines(capsys, "import", exported, file)
    lines(capsys, "import", exported, file, "--as", "agent/copy")
    options = SnapshotOptions(state="sidecar" if file.endswith(".state.gguf") else "model")
    with StateSnapshotManager(tmp_path / "M.gguf", options, read_only=True) as manager:
        for session_id, version in (("agent/one", 3), ("agent/copy", 1)):
            saved = manager.restore(session_id)
            assert saved.snapshot.version == version
            assert (saved.agent_state.tobytes(), saved.parts["pdf"].tobytes()) == (AGENT, b"%PDF")
            assert saved.key_value is not None
            assert saved.key_value.tobytes() == b"pages"
            assert list(saved.session.token_ids) == [5, 6, 7]
    with StateSnapshotManager(tmp_path / "one.gguf", read_only=True) as manager:
        assert manager.get("agent/one").version == 2, "an export keeps the number"


def test_an_export_never_replaces_a_file_and_is_there_whole_or_not_at_all(file: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken.state.gguf"
    taken.write_bytes(b"mine")
    with pytest.raises(PreconditionError, match="exists already"):
        commands.run(["state", "export", "agent/one", str(taken), file])
    assert taken.read_bytes() == b"mine"
    with pytest.raises(PreconditionError, match=r"Let it end in \.state\.gguf"):
        commands.run(["state", "export", "agent/one", str(tmp_path / "x.gguf"), file])
    with pytest.raises(NotFoundError):
        commands.run(["state", "export", "agent/one", str(tmp_path / "none" / "x.state.gguf"), file])
    assert sorted(each.name for each in tmp_path.iterdir() if "M." not in each.name) == ["taken.state.gguf"]


def test_an_import_of_many_sessions_wants_one_named(file: str, tmp_path: Path) -> None:
    other = str(gguf_bytes.write_model(tmp_path / "other.gguf"))
    with pytest.raises(InvalidRequestError, match="holds 2 sessions: agent/one, agent/two"):
        commands.run(["state", "import", file, other])
    assert commands.run(["state", "import", file, other, "--session", "agent/one", "--version", "1"]) == 0
    with StateSnapshotManager(Path(other), read_only=True) as manager:
        assert manager.restore("agent/one").agent_state.tobytes() == b"old"


def test_compact_drops_old_versions_and_a_dry_run_does_not(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    [dry] = lines(capsys, "compact", file, "--keep-versions", "1", "--dry-run")
    assert dry.endswith("1 versions would be dropped")
    assert len(lines(capsys, "list", file, "--all")) == 3
    [done] = lines(capsys, "compact", file, "--keep-versions", "1")
    assert done.endswith("1 versions dropped")
    assert len(lines(capsys, "list", file, "--all")) == 2


def test_check_reports_damage_with_its_offset_and_exit_status_65(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "check", file) == []
    data = bytearray(Path(file).read_bytes())
    data[data.index(AGENT) + 4000] ^= 1
    Path(file).write_bytes(data)
    assert commands.run(["state", "check", file]) == 65
    [line] = capsys.readouterr().out.splitlines()
    offset = int(line.split()[1], 16)
    assert data[offset : offset + 8] == b"MAGSTATE"
    assert line.endswith("the checksum of agent_state is wrong  version 2 of agent/one")
    assert any("agent_state of 8,000 bytes" in each for each in lines(capsys, "dump", file))


def test_a_file_that_is_being_written_is_read_but_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with StateSnapshotManager(model) as manager:
        fill(manager)
        assert len(lines(capsys, "list", str(model))) == 2
        with pytest.raises(PreconditionError) as caught:
            commands.run(["state", "compact", str(model)])
        assert (caught.value.reason, caught.value.exit_code) == ("STATE_FILE_LOCKED", 73)


@pytest.mark.parametrize("command", ["list", "check", "dump", "compact"])
def test_a_file_that_is_not_there_makes_none(tmp_path: Path, command: str) -> None:
    for name in ("none.gguf", "none.state.gguf"):
        with pytest.raises(NotFoundError):
            commands.run(["state", command, str(tmp_path / name)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "dump", "list", "compact"])
@pytest.mark.parametrize(
    ("special", "words"),
    [("/dev/zero", "no regular file"), ("/", "a folder"), ("{}/a.gguf", "a pipe"), ("{}/b.state.gguf", "a pipe")],
)
def test_what_is_no_regular_file_is_refused_by_what_it_is(
    tmp_path: Path, special: str, words: str, command: str
) -> None:
    for name in ("a.gguf", "b.state.gguf"):
        os.mkfifo(tmp_path / name)
    name = special.format(tmp_path)
    with pytest.raises(PreconditionError, match=f"{re.escape(name)} is {words}") as caught:
        commands.run(["state", command, name])
    assert (caught.value.reason, "M.state.gguf" in caught.value.remedy) == ("NOT_A_STATE_FILE", True)


def test_a_model_without_sessions_says_so(tmp_path: Path) -> None:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with pytest.raises(NotFoundError, match="no session was saved"):
        commands.run(["state", "list", str(model)])


def test_a_label_needs_a_value(file: str) -> None:
    with pytest.raises(InvalidRequestError, match="has no ="):
        commands.run(["state", "list", file, "--label", "x"])


def test_a_server_is_asked_where_no_file_is_named(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--address", address)
    assert len(lines(capsys, "list", *at)) == 4, "over several pages"
    assert len(lines(capsys, "list", *at, "--all", "--session", "agent/one")) == 2
    assert json.loads("\n".join(lines(capsys, "show", "agent/one", *at, "--json")))["version"] == 2
    exported = str(tmp_path / "one.state.gguf")
    lines(capsys, "export", "agent/one", exported, "--version", "1", *at)
    [imported] = lines(capsys, "import", exported, "--as", "s0", *at)
    assert imported.startswith("s0  version 2  ")
    [done] = lines(capsys, "compact", "--keep-versions", "1", *at)
    assert done.endswith("2 versions dropped")


def test_how_the_server_is_reached_is_said_before_the_command(address: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with pytest.raises(ConfigurationError, match="sent in the clear"):
        commands.run(["state", "--client-token-file", str(token), "list", "--address", address])


def test_an_error_of_the_server_is_ours_with_its_exit_status(address: str, file: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        commands.run(["state", "show", "nobody", "--address", address])
    assert caught.value.reason == "SESSION_NOT_FOUND"
    with pytest.raises(InvalidRequestError, match="parts beside the agent state"):
        commands.run(["state", "import", file, "--session", "agent/one", "--address", address])
    with pytest.raises(MagnitudeError, match="name a state file") as unreachable:
        commands.run(["state", "list", "--address", "127.0.0.1:1"])
    assert unreachable.value.exit_code == 75
