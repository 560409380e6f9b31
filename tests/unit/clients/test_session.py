"""The session handle without a server: what it asks for, and the file that a session travels in."""

from __future__ import annotations

import io
from typing import Any

import pytest

from magnitude.client import Client, infer_request
from magnitude.errors import DataLoss
from magnitude.session import MAGIC
from magnitude.sessions import ExportedState
from magnitude.v1 import snapshot_pb2

STATE = ExportedState(
    snapshot_pb2.StateHeader(session=snapshot_pb2.SessionState(token_ids=[1, 2])), b"agent" * 100, b"pages" * 1000
)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of nobody, whose exports are STATE and whose imports are remembered."""
    made = Client("127.0.0.1:1")
    monkeypatch.setattr(made.sessions, "export", lambda *_, **__: STATE)
    taken: list[Any] = []
    monkeypatch.setattr(made.sessions, "import_state", lambda *given, **options: taken.append((given, options)))
    monkeypatch.setattr(made, "taken", taken, raising=False)
    return made


def exported(client: Client) -> bytes:
    file = io.BytesIO()
    client.session("s").export_to(file)
    return file.getvalue()


def test_a_request_without_a_prompt_has_no_input() -> None:
    request = infer_request(None, session_id="s", max_tokens=3)
    assert request.WhichOneof("input") is None
    assert (request.session_id, request.stopping.max_tokens) == ("s", 3)


def test_a_session_travels_in_a_file(client: Client) -> None:
    client.session("other").import_from(io.BytesIO(exported(client)), expected_version=0)
    [(given, options)] = client.taken  # type: ignore[attr-defined]
    assert given == (STATE, "other")
    assert options == {"model": "", "expected_version": 0}


def test_a_file_that_was_cut_or_is_another_one_is_refused(client: Client) -> None:
    content = exported(client)
    front = len(MAGIC) + 24
    for damaged in (b"", content[:7], content[:front], content[:-1], b"GGUF" + content[4:], content[: front + 3]):
        with pytest.raises(DataLoss) as caught:
            client.session("s").import_from(io.BytesIO(damaged))
        assert caught.value.reason == "INTEGRITY"
    broken = bytearray(content)
    broken[front] = 0xFF
    with pytest.raises(DataLoss, match="header"):
        client.session("s").import_from(io.BytesIO(broken))


def test_a_large_state_is_streamed_and_keeps_its_labels(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(client.sessions, "send", lambda header, state: sent.append((header, state)))
    client.session("s").save(bytes(5 << 20), labels={"a": "b"}, step_name="read", expected_version=3)
    [(header, state)] = sent
    assert (header.live_session_id, header.expected_version) == ("s", 3)
    assert (header.state.snapshot.labels["a"], header.state.snapshot.step_name) == ("b", "read")
    assert len(state.agent_state) == 5 << 20
