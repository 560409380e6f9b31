"""`client.sessions`, against a server that answers for a state file."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.client import Client
from magnitude.errors import DataLoss, NotFound
from magnitude.v1 import snapshot_pb2
from magnitude_service.snapshot import StateSnapshotManager
from tests.support import gguf_bytes
from tests.support.snapshot_server import FileServicer, snapshot_server

LARGE = bytes(range(256)) * 10_000
"""More than two chunks."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Client, FileServicer]]:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with (
        StateSnapshotManager(model) as manager,
        snapshot_server(manager) as (address, servicer),
        Client(address, timeout_seconds=20) as client,
    ):
        yield client, servicer


def header(session_id: str) -> snapshot_pb2.StateHeader:
    session = snapshot_pb2.SessionState(state_version=1, token_ids=[1, 2])
    return snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id=session_id), session=session)


def test_saved_versions_are_listed_got_and_deleted(served: tuple[Client, FileServicer]) -> None:
    sessions = served[0].sessions
    assert sessions.save("one", b"draft", labels={"step": "search"}).version == 1
    assert sessions.save("one", b"more").version == 2
    assert [(each.session_id, each.version) for each in sessions.list(all_versions=True)] == [("one", 1), ("one", 2)]
    assert [each.version for each in sessions.list(labels={"step": "search"}, all_versions=True)] == [1]
    assert sessions.get("one", 1, return_agent_state=True).agent_state == b"draft"
    assert sessions.delete("one", [1]).deleted_versions == 1
    assert sessions.compact().bytes_after > 0
    with pytest.raises(NotFound) as caught:
        sessions.get("one", 1)
    assert caught.value.reason == "SNAPSHOT_NOT_FOUND"


def test_an_exported_state_of_any_size_is_imported_elsewhere(served: tuple[Client, FileServicer]) -> None:
    client, servicer = served
    servicer.manager.save(header("one"), agent_state=LARGE)
    state = client.sessions.export("one")
    assert (state.agent_state, state.header.session.token_ids) == (LARGE, [1, 2])
    with_pages = dataclasses.replace(state, key_value=LARGE[:5])
    assert client.sessions.import_state(with_pages, "two").version == 1
    saved = servicer.manager.restore("two")
    assert saved.agent_state.tobytes() == LARGE
    assert saved.key_value is not None
    assert client.sessions.import_state(state).version == 2, "without another name it keeps its own"


@pytest.mark.parametrize("what", ["byte", "crc", "lost", "last", "twice", "order", "size", "end"])
def test_an_export_that_arrives_damaged_is_an_error(served: tuple[Client, FileServicer], what: str) -> None:
    client, servicer = served
    servicer.manager.save(header("one"), agent_state=LARGE)
    servicer.breaks = what
    with pytest.raises(DataLoss, match="exported state is damaged"):
        client.sessions.export("one")


def test_bytes_that_are_kept_in_a_file_have_the_sha256_that_the_server_says(
    served: tuple[Client, FileServicer],
) -> None:
    client, servicer = served
    servicer.manager.save(header("one"), agent_state=LARGE)
    client.session("one").export_to(io.BytesIO())
    servicer.breaks = "sha256"
    assert client.sessions.export("one").agent_state == LARGE
    for export in (
        lambda: client.session("one").export_to(io.BytesIO()),
        lambda: client.sessions.export("one", checks_sha256=True),
    ):
        with pytest.raises(DataLoss, match="SHA-256 of agent_state is wrong"):
            export()


def test_an_export_of_nothing_is_the_servers_error(served: tuple[Client, FileServicer]) -> None:
    with pytest.raises(NotFound, match="no saved session nobody"):
        served[0].sessions.export("nobody")
