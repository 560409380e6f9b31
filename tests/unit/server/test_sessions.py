"""Sessions above the engine: who holds them, what of the text stays behind, and what is saved when."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magnitude.errors import CallError, Exhausted, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from magnitude.v1 import inference_pb2, snapshot_pb2
from magnitude_service.errors import UnavailableError
from magnitude_service.server.served_models import PageDescription, Runtime
from magnitude_service.server.sessions import Sessions
from magnitude_service.server.text_workers import TextWorkers
from magnitude_service.snapshot import LazyManager, SnapshotOptions, StateSnapshotManager

PAGES = PageDescription(
    *(1, 1, 1, 32, "f16", "avx512", frozenset({"avx512"})),
    vocabulary_id=lambda: "tokens",
    row_bytes=lambda kind, size: 2 * size,
    problem_of=lambda content, saved_type, cache_type: "",
)
"""Four bytes a token, as the fake engine has."""
MAX_TOKENS = inference_pb2.FINISH_REASON_MAX_TOKENS


@pytest.fixture
def store(served: Any, tmp_path: Path) -> Iterator[LazyManager]:
    """The server keeps sessions in a folder."""
    states = LazyManager(tmp_path / "m.gguf", SnapshotOptions())
    served.model.ready(served.description, Runtime(served.engine, served.tokenizer, served.template, PAGES, states))
    yield states
    states.close()


def answer(served: Any, session_id: str, prompt: Any, said: bytes, tokens: int, **options: Any) -> str:
    """The text of one request, for which the engine has `said` to say."""
    served.engine.script = lambda request, choice: list(said)
    return str(served.client.infer(prompt, session_id=session_id, max_tokens=tokens, **options).choices[0].text)


def test_half_a_character_waits_for_the_rest_of_it(served: Any, store: LazyManager) -> None:
    cat = "😸".encode()
    assert answer(served, "s", "a", b"x" + cat[:2], 3) == "x"
    assert answer(served, "s", None, cat[2:] + b"y", 3) == "😸y"


def test_half_a_stop_string_waits_for_the_rest_of_it(served: Any, store: LazyManager) -> None:
    stops = {"stop_strings": ["STOP"]}
    assert answer(served, "s", "a", b"xST", 3, **stops) == "x"
    assert answer(served, "s", None, b"OP--", 4, **stops) == ""
    assert answer(served, "t", "a", b"xST", 3, **stops) == "x"
    assert answer(served, "t", None, b"AY", 2, **stops) == "STAY"


def test_what_was_held_back_for_another_stop_string_is_shown(served: Any, store: LazyManager) -> None:
    assert answer(served, "s", "a", b"xST", 3, stop_strings=["STOP"]) == "x"
    assert answer(served, "s", None, b"OP", 2) == "STOP"


def test_text_that_waits_survives_a_save_and_a_restore(served: Any, store: LazyManager) -> None:
    cat = "😸".encode()
    answer(served, "s", "a", b"x" + cat[:3], 4, stop_strings=["STOP"])
    served.client.session("s").save()
    served.client.session("s").restore()
    assert answer(served, "s", None, cat[3:], 1) == "😸"


def test_a_new_prompt_leaves_what_waited_behind(served: Any, store: LazyManager) -> None:
    answer(served, "s", "a", b"x\xf0\x9f", 3)
    assert answer(served, "s", "b", b"yz", 2) == "yz"


def test_a_request_that_is_refused_lets_its_session_go(served: Any, store: LazyManager) -> None:
    for options in ({"temperature": -1}, {"max_tokens": 10**6}, {"n": 2}):
        with pytest.raises(InvalidRequest):
            served.client.infer("a", session_id="s", **options)
    assert answer(served, "s", "a", b"xy", 2) == "xy"
    with pytest.raises(NotFound):
        served.client.session("never").save()


def test_a_chat_is_told_the_time_at_which_the_session_began(served: Any, store: LazyManager) -> None:
    session = served.client.session("s")
    for _ in range(2):
        session.infer([{"role": "user", "content": "hi"}], max_tokens=1)
    first, second = served.template.calls
    assert first["now"] == second["now"]
    assert abs(first["now"].timestamp() - time.time()) < 60
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]


def test_pages_that_no_copy_has_room_for_are_refused_with_the_numbers(served: Any, store: LazyManager) -> None:
    answer(served, "s", "a" * 100, b"xy", 2)
    served.memory = replace(served.memory, available_bytes=10)
    with pytest.raises(Exhausted, match="404 bytes; 10 may") as caught:
        served.client.session("s").save()
    assert caught.value.reason == "MEMORY_EXHAUSTED"
    assert served.client.session("s").save(with_pages=False).version == 1


def test_a_snapshot_that_cannot_be_saved_is_refused_before_anything_is_computed(served: Any, tmp_path: Path) -> None:
    states = LazyManager(tmp_path / "m.gguf", SnapshotOptions(state_dir=str(tmp_path / "missing")))
    served.model.ready(served.description, Runtime(served.engine, served.tokenizer, served.template, PAGES, states))
    with pytest.raises(CallError) as caught:
        served.client.infer("a", session_id="s", max_tokens=2, snapshot_afterwards={"labels": {"a": "b"}})
    assert caught.value.reason == "STATE_FILE_NOT_FOUND"
    assert served.engine.submitted == []


def reopened(served: Any, path: Path) -> LazyManager:
    """The same state file to the server as after a new start; its live sessions stay."""
    states = LazyManager(path, SnapshotOptions())
    served.model.ready(served.description, Runtime(served.engine, served.tokenizer, served.template, PAGES, states))
    return states


@pytest.mark.parametrize("restores", [False, True], ids=["infer", "restore"])
def test_a_session_that_is_brought_back_is_not_deleted_meanwhile(
    served: Any, store: LazyManager, monkeypatch: pytest.MonkeyPatch, restores: bool
) -> None:
    """Or else it would live on, of versions that are no more."""
    answer(served, "s", "a", b"x", 1)
    served.client.session("s").save()
    served.engine.sessions.end("s")
    is_reading, may_go_on = threading.Event(), threading.Event()
    read = StateSnapshotManager.restore

    def slowly(*arguments: Any) -> Any:
        is_reading.set()
        assert may_go_on.wait(10)
        return read(*arguments)

    monkeypatch.setattr(StateSnapshotManager, "restore", slowly)
    with ThreadPoolExecutor(1) as other:
        calls = (served.client.session("s").restore,) if restores else (answer, served, "s", None, b"y", 1)
        brought_back = other.submit(*calls)
        try:
            assert is_reading.wait(10)
            with pytest.raises(Unavailable, match=r"Session s is in use: (a restore|request)"):
                served.client_without_retries.sessions.delete("s")
        finally:
            may_go_on.set()
        brought_back.result(10)
    assert served.client.sessions.delete("s").deleted_versions == 1
    assert not served.engine.sessions.is_live("s")


def test_a_delete_that_fails_leaves_the_session_live(served: Any, store: LazyManager, tmp_path: Path) -> None:
    answer(served, "s", "a", b"xy", 2)
    served.client.session("s").save()
    answer(served, "t", "a", b"xy", 2)
    store.close()
    with StateSnapshotManager(tmp_path / "m.gguf"), contextlib.closing(reopened(served, tmp_path / "m.gguf")):
        with pytest.raises(CallError) as caught:
            served.client.session("s").delete()
        assert caught.value.reason == "STATE_FILE_LOCKED"
        assert served.engine.sessions.hold("s", "the test").tokens.tobytes() == np.array([*b"axy"], np.int32).tobytes()
        assert served.client.session("t").delete().deleted_versions == 0, "of one never saved nothing is deleted"
        assert not served.engine.sessions.is_live("t")


def test_a_save_whose_caller_goes_away_is_finished_and_lets_go(served: Any, store: LazyManager) -> None:
    answer(served, "s", "a", b"xy", 2)
    call = served.client.snapshots.Save.future(snapshot_pb2.SaveRequest(session_id="s"))
    call.cancel()
    end = time.monotonic() + 20
    while True:
        with contextlib.suppress(CallError):
            if served.client_without_retries.session("s").save(with_pages=False).version:
                break
        assert time.monotonic() < end


def agent_state_of(served: Any, session_id: str) -> bytes:
    """The application's bytes of its latest version."""
    return bytes(served.client.sessions.get(session_id, return_agent_state=True).agent_state)


def test_a_save_without_an_agent_state_keeps_that_of_the_version_that_was_restored(
    served: Any, store: LazyManager
) -> None:
    session = served.client.session("s")
    for said in (b"one", b"two"):
        answer(served, "s", "a", b"xy", 2)
        session.save(said)
    session.restore(version=1)
    assert session.save().parent_version == 1
    assert agent_state_of(served, "s") == b"one"
    session.restore(version=2)
    answer(served, "s", "a", b"xy", 2, snapshot_afterwards={"step_number": 4})
    assert agent_state_of(served, "s") == b"two"


def test_the_first_version_of_a_copy_keeps_the_agent_state_of_the_original(served: Any, store: LazyManager) -> None:
    answer(served, "s", "a", b"xy", 2)
    original = served.client.session("s").save(b"mine")
    restore_as(served, "copy")
    assert b"mine" in b"".join(part.agent_state.content for part in exported_live(served, "copy"))
    copied = served.client.session("copy").save()
    assert (copied.parent_version, copied.agent_state_sha256) == (0, original.agent_state_sha256)
    served.client.session("s").delete()
    served.client.session("copy").save()
    assert agent_state_of(served, "copy") == b"mine"


def test_a_copy_whose_original_was_deleted_is_saved_with_an_agent_state_of_its_own(
    served: Any, store: LazyManager
) -> None:
    answer(served, "s", "a", b"xy", 2)
    served.client.session("s").save(b"mine")
    restore_as(served, "copy")
    served.client.session("s").delete()
    with pytest.raises(PreconditionFailed, match="version 1 of session s") as caught:
        served.client.session("copy").save()
    assert caught.value.reason == "AGENT_STATE_DELETED"
    served.client.session("copy").save(b"")
    assert agent_state_of(served, "copy") == b""


def restore_as(served: Any, name: str) -> None:
    """Makes another live session of the latest version of `s`."""
    reference = snapshot_pb2.SnapshotReference(session_id="s")
    request = snapshot_pb2.RestoreRequest(snapshot=reference, session_id=name)
    assert served.client.call(served.client.snapshots.Restore, request).session_id == name


def exported_live(served: Any, name: str) -> list[snapshot_pb2.ExportStateResponse]:
    """All parts of a live session."""
    return list(served.client.snapshots.ExportState(snapshot_pb2.ExportStateRequest(live_session_id=name)))


def test_one_reader_of_a_live_session_at_a_time_holds_a_copy(served: Any) -> None:
    async def check() -> None:
        sessions = Sessions(TextWorkers(1), lambda: served.memory)
        async with sessions.live_export(served.model):
            with pytest.raises(UnavailableError) as caught:
                async with sessions.live_export(served.model):
                    pass
            assert (caught.value.reason, caught.value.retry_after_seconds) == ("EXPORT_BUSY", 1.0)
        async with sessions.live_export(served.model):
            pass

    asyncio.run(check())


def test_an_agent_state_of_named_values_has_a_message_of_its_own() -> None:
    state = snapshot_pb2.AgentState()
    state.values["draft"].content = b"x"
    state.values["plan"].struct.update({"steps": ["search", "read"], "done": 1})
    state.values["last"].message.Pack(snapshot_pb2.TokenRun(count=3))
    again = snapshot_pb2.AgentState.FromString(state.SerializeToString())
    assert again.values["plan"].struct["done"] == 1
