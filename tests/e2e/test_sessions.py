"""Sessions over gRPC: what was said goes on, whatever happens to the process in between."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magnitude.client import Client
from magnitude.errors import CallError, DataLoss, Exhausted, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from magnitude.sessions import ExportedState
from magnitude.v1 import inference_pb2, snapshot_pb2
from magnitude_service.engine.cache_rows import CacheType, encode
from magnitude_service.engine.canonical_pages import VALUE_MAX, problem_of
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from tests.support.serving import Served, eventually, serving, starting
from tests.support.tiny_models import write_tiny_model

PROMPT = "Once upon a time there was a lighthouse keeper who"
TOKENS = 40
RETURNS = inference_pb2.ReturnOptions(token_ids=True, logprobs=3)
SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 11, "repetition_penalty": 1.1, "ignore_eos": True}
BIT_EXACT = snapshot_pb2.RESTORE_FIDELITY_BIT_EXACT
Answer = list[tuple[int, float, tuple[float, ...]]]


@contextlib.contextmanager
def killed_at_the_end(model: Path, *flags: str) -> Iterator[Client]:
    """A server that ends by SIGKILL, without a chance to write anything."""
    with starting(model, *flags) as served, Client(served.address, timeout_seconds=60, retries=False) as client:
        yield client
        served.process.kill()
        served.process.wait(10)


def answer_of(response: inference_pb2.InferResponse) -> Answer:
    """Tokens with every log-probability that came with them."""
    return [
        (entry.token_id, entry.logprob, tuple(top.logprob for top in entry.top))
        for entry in response.choices[0].logprobs
    ]


def ask(
    client: Client, session_id: str, prompt: str | None, tokens: int, **options: Any
) -> inference_pb2.InferResponse:
    """One request of a session; without a prompt the last answer goes on."""
    given = {**SAMPLING, "max_tokens": tokens, "return_options": RETURNS, "session_id": session_id, **options}
    return client.infer(prompt, **given)


@pytest.fixture(scope="module")
def model(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a folder of its own, since its state file lies beside it."""
    return Path(shutil.copy(tiny_path, tmp_path_factory.mktemp("sessions")))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with serving(model) as served:
        yield served


def test_an_answer_in_parts_is_the_answer_in_one(client: Client) -> None:
    stateless = client.infer(PROMPT, max_tokens=TOKENS, return_options=RETURNS, **SAMPLING)
    whole = ask(client, "whole", PROMPT, TOKENS)
    first = ask(client, "parts", PROMPT, 13)
    second = ask(client, "parts", None, TOKENS - 13)
    assert answer_of(first) + answer_of(second) == answer_of(whole) == answer_of(stateless)
    assert first.choices[0].text + second.choices[0].text == whole.choices[0].text
    assert second.usage.prompt_tokens == first.usage.prompt_tokens + 13
    assert second.usage.cached_tokens == second.usage.prompt_tokens - 1


def test_a_character_and_a_stop_string_over_a_seam_are_whole(client: Client) -> None:
    """Token by token the text is the same, and a stop string is found where it would have been."""
    options = {"stop_strings": ["q\x0b", "5S"], "return_options": inference_pb2.ReturnOptions(token_ids=True)}
    whole = client.infer(PROMPT, max_tokens=60, **SAMPLING, **options).choices[0]
    assert whole.end.finish_reason == inference_pb2.FINISH_REASON_STOP_STRING
    session, text, tokens = client.session("seam"), "", []
    prompt: str | None = PROMPT
    for _ in range(60):
        part = session.infer(prompt, max_tokens=1, **SAMPLING, **options).choices[0]
        prompt, text, tokens = None, text + part.text, [*tokens, *part.token_ids]
        if part.end.finish_reason == inference_pb2.FINISH_REASON_STOP_STRING:
            break
    assert (text, tokens, part.end) == (whole.text, list(whole.token_ids), whole.end)


def test_a_chat_goes_on_with_what_is_new(client: Client) -> None:
    """The template writes the new messages behind the answer, and nothing twice."""
    options: dict[str, Any] = {"max_tokens": 8, "return_options": RETURNS, **SAMPLING}
    messages = [{"role": "user", "content": "hello"}]
    session = client.session("chat")
    first = session.infer(messages, **options).choices[0]
    second = session.infer([{"role": "user", "content": "and <|im_end|> then?"}], **options)
    written = client.tokenize("<|im_end|>\n<|im_start|>user\n", parse_special=True)
    written += client.tokenize("and <|im_end|> then?")
    written += client.tokenize("<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    history = [*client.tokenize(messages), *first.token_ids, *written]
    assert second.usage.prompt_tokens == len(history)
    assert answer_of(second) == answer_of(client.infer(history, **options))


def test_a_session_keeps_its_seed(client: Client) -> None:
    options: dict[str, Any] = {"max_tokens": 10, "temperature": 1.0, "return_options": RETURNS, "ignore_eos": True}
    session = client.session("seed")
    first = session.infer(PROMPT, **options)
    second = session.infer(None, **options)
    assert first.seed_used == second.seed_used
    whole = client.infer(PROMPT, seed=first.seed_used, **{**options, "max_tokens": 20})
    assert answer_of(first) + answer_of(second) == answer_of(whole)


def test_streams_go_on_too_and_a_save_afterwards_comes_with_the_end(client: Client) -> None:
    session = client.session("streamed")
    whole = ask(client, "streamed-whole", PROMPT, 20).choices[0].text
    text = "".join(session.stream(PROMPT, max_tokens=9, **SAMPLING).texts())
    afterwards = {"agent_state": b"draft", "step_number": 3, "step_name": "write", "labels": {"a": "b"}}
    with session.stream(None, max_tokens=11, snapshot_afterwards=afterwards, **SAMPLING) as stream:
        text += "".join(stream.texts())
        assert stream.finished is not None
        snapshot = stream.finished.snapshot
    assert text == whole
    assert (snapshot.version, snapshot.step_number, snapshot.step_name, snapshot.labels["a"]) == (1, 3, "write", "b")
    assert snapshot.agent_state_sha256 == hashlib.sha256(b"draft").digest()
    assert [found.version for found in session.versions()] == [1]
    response = client.sessions.get("streamed", return_agent_state=True)
    assert response.agent_state == b"draft"


@pytest.mark.parametrize("with_pages", [True, False])
def test_a_session_goes_on_after_a_kill_as_if_nothing_had_happened(
    model: Path, tmp_path: Path, with_pages: bool
) -> None:
    check_points(model, tmp_path, with_pages, points=3, tokens=TOKENS)


@pytest.mark.model
@pytest.mark.parametrize("with_pages", [True, False])
def test_smollm2_goes_on_after_a_kill_as_if_nothing_had_happened(
    smollm2_path: Path, tmp_path: Path, with_pages: bool
) -> None:
    check_points(smollm2_path, tmp_path, with_pages, points=2, tokens=60)


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.parametrize("with_pages", [True, False])
def test_smollm2_goes_on_after_a_kill_at_twenty_points(smollm2_path: Path, tmp_path: Path, with_pages: bool) -> None:
    check_points(smollm2_path, tmp_path, with_pages, points=20, tokens=200)


def check_points(model: Path, folder: Path, with_pages: bool, *, points: int, tokens: int) -> None:
    """Saves at random points of one answer, kills, restores the last version, and goes on to the end."""
    flags = ("--state-dir", str(folder), "--context-tokens", "1024")
    dice = random.Random(points)
    options = {**SAMPLING, "return_options": RETURNS}
    with serving(model, "--context-tokens", "1024") as served, Client(served.address) as client:
        whole = answer_of(client.infer(PROMPT, max_tokens=tokens, **options))
    for point in sorted(dice.sample(range(1, tokens), points)):
        session_id = f"agent/{point}"
        with killed_at_the_end(model, *flags) as client:
            session = client.session(session_id)
            before = session.infer(PROMPT, max_tokens=point, **options)
            session.save(b"at %d" % point, with_pages=with_pages, step_number=point)
        with killed_at_the_end(model, *flags) as client:
            session = client.session(session_id)
            found = session.restore()
            assert (found.fidelity, found.reason, found.agent_state) == (BIT_EXACT, "", b"at %d" % point)
            assert found.recomputed_tokens == (1 if with_pages else found.snapshot.token_count)
            after = session.infer(None, max_tokens=tokens - point, **options)
        assert answer_of(before) + answer_of(after) == whole, f"point {point}"
        assert after.usage.cached_tokens == (found.snapshot.token_count - 1 if with_pages else 0)


def test_a_request_that_names_a_saved_session_brings_it_back_by_itself(model: Path, tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path))
    with killed_at_the_end(model, *flags) as client:
        whole = answer_of(ask(client, "whole", PROMPT, 20))
        before = ask(client, "s", PROMPT, 9)
        client.session("s").save()
    with killed_at_the_end(model, *flags) as client:
        after = ask(client, "s", None, 11)
        assert answer_of(before) + answer_of(after) == whole
        assert client.session("s").save().parent_version == 1


def test_an_older_version_can_be_gone_back_to(client: Client) -> None:
    session = client.session("branch")
    ask(client, "branch", PROMPT, 5)
    first = session.save(b"one")
    then = answer_of(ask(client, "branch", None, 10))
    second = session.save()
    assert (first.version, second.version, second.parent_version) == (1, 2, 1)
    assert second.agent_state_sha256 == first.agent_state_sha256, "an absent state is that of the last version"
    session.restore(version=1)
    assert answer_of(ask(client, "branch", None, 10)) == then
    assert session.save().parent_version == 1


def test_an_older_version_is_not_swapped_for_the_latest_behind_ones_back(model: Path, tmp_path: Path) -> None:
    """With one place for a live session, another one that needs it is refused: the restored one is not the latest."""
    flags = ("--state-dir", str(tmp_path), "--sessions-live-max", "1")
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        session = client.session("s")
        for _ in range(2):
            ask(client, "s", PROMPT, 5)
            session.save()
        session.restore(version=1)
        with pytest.raises(Exhausted) as caught:
            ask(client, "other", PROMPT, 5)
        assert caught.value.reason == "SESSIONS_EXHAUSTED"
        session.restore()
        assert ask(client, "other", PROMPT, 5).choices[0].end
        with pytest.raises(Exhausted):
            session.restore()
        client.session("other").delete()
        assert session.restore().snapshot.version == 2


def test_a_restore_under_another_name_leaves_the_first_one_alone(client: Client) -> None:
    ask(client, "original", PROMPT, 5)
    client.session("original").save()
    request = snapshot_pb2.RestoreRequest(
        snapshot=snapshot_pb2.SnapshotReference(session_id="original"), session_id="copy"
    )
    assert client.call(client.snapshots.Restore, request).session_id == "copy"
    assert answer_of(ask(client, "copy", None, 10)) == answer_of(ask(client, "original", None, 10))
    assert client.session("copy").save().version == 1


def test_forty_megabytes_of_agent_state_make_a_round_trip(client: Client, tmp_path: Path) -> None:
    session = client.session("large")
    ask(client, "large", PROMPT, 12)
    state = random.Random(1).randbytes(40 << 20)
    saved = session.save(state, step_name="read", labels={"kind": "pdf"})
    assert (saved.agent_state_bytes, saved.agent_state_sha256) == (40 << 20, hashlib.sha256(state).digest())
    assert saved.key_value_bytes
    assert session.restore().agent_state_omitted
    with (tmp_path / "large.session").open("wb") as file:
        session.export_to(file)
    other = client.session("large-copy")
    with (tmp_path / "large.session").open("rb") as file:
        imported = other.import_from(file)
    assert (imported.version, imported.step_name, imported.labels["kind"]) == (1, "read", "pdf")
    assert other.restore().fidelity == BIT_EXACT
    assert answer_of(ask(client, "large-copy", None, 10)) == answer_of(ask(client, "large", None, 10))
    assert client.sessions.export("large-copy").agent_state == state
    assert session.delete().deleted_versions == 1
    assert other.delete().deleted_versions == 1


def test_a_live_session_is_exported_as_it_is_now(client: Client) -> None:
    ask(client, "live", PROMPT, 6)
    client.session("live").save(b"old")
    ask(client, "live", None, 6)
    request = snapshot_pb2.ExportStateRequest(live_session_id="live")
    parts = list(client.snapshots.ExportState(request))
    assert [part.WhichOneof("part") for part in parts] == ["header", "agent_state", "key_value", "end"]
    state = parts[0].header
    assert len(state.session.token_ids) == state.snapshot.token_count == len(client.tokenize(PROMPT)) + 12
    assert parts[1].agent_state.content == b"old"
    layout = state.page_layout
    token_bytes = 2 * layout.layers * layout.heads * layout.head_size * 2
    assert parts[3].end.key_value_bytes == (state.snapshot.token_count - 1) * token_bytes


def test_a_live_session_whose_last_version_was_deleted_is_exported_with_the_bytes_of_the_one_before(
    client: Client,
) -> None:
    ask(client, "cut", PROMPT, 6)
    for state in (b"first", b"second"):
        client.session("cut").save(state)
    request = snapshot_pb2.ExportStateRequest(live_session_id="cut")
    for left in (b"first", b""):
        client.sessions.delete("cut", [2 if left else 1])
        parts = list(client.snapshots.ExportState(request))
        assert b"".join(part.agent_state.content for part in parts) == left
    assert client.session("cut").delete().deleted_versions == 0


def test_a_slow_reader_of_a_live_session_holds_up_neither_it_nor_saves(client: Client) -> None:
    ask(client, "slow", PROMPT, 2000)
    reading = client.snapshots.ExportState(snapshot_pb2.ExportStateRequest(live_session_id="slow"))
    header = next(iter(reading)).header
    assert len(answer_of(ask(client, "slow", None, 3))) == 3
    assert client.session("slow").save().token_count == header.snapshot.token_count + 3
    reading.cancel()
    eventually(lambda: not is_busy(client, "slow"))


def test_sessions_at_the_same_time_do_not_touch_each_other(client: Client) -> None:
    expected = [answer_of(ask(client, f"alone{i}", PROMPT, 20, seed=i)) for i in range(8)]
    found: dict[int, Answer] = {}

    def work(index: int) -> None:
        said: Answer = []
        for turn in range(4):
            said += answer_of(ask(client, f"crowd{index}", None if turn else PROMPT, 5, seed=index))
            client.session(f"crowd{index}").save(with_pages=bool(turn % 2))
        found[index] = said

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(8)] == expected


def test_one_call_uses_a_session_at_a_time(client: Client) -> None:
    session = client.session("busy")
    with session.stream("hello", max_tokens=3000, ignore_eos=True) as stream:
        next(text for text in stream.texts() if text)
        for call in (lambda: session.infer("more"), session.save, session.delete):
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.reason == "SESSION_BUSY"
            assert caught.value.retry_after_seconds


def test_a_cancelled_request_leaves_its_session_as_it_was(client: Client) -> None:
    undisturbed = [answer_of(ask(client, "calm", PROMPT, 8)), answer_of(ask(client, "calm", None, 8))]
    first = answer_of(ask(client, "cancelled", PROMPT, 8))
    with client.session("cancelled").stream("and then ", max_tokens=3000, **SAMPLING) as stream:
        next(text for text in stream.texts() if text)
    eventually(lambda: not is_busy(client, "cancelled"))
    assert [first, answer_of(ask(client, "cancelled", None, 8))] == undisturbed


def is_busy(client: Client, session_id: str) -> bool:
    """Whether somebody holds a session, or reads it."""
    try:
        call_stream(client, snapshot_pb2.ExportStateRequest(live_session_id=session_id))
    except Unavailable:
        return True
    return False


def test_an_aborted_request_keeps_what_it_said(client: Client) -> None:
    session = client.session("aborted")
    with session.stream("hello", request_id="abort-me", max_tokens=3000, ignore_eos=True) as stream:
        texts = stream.texts()
        said = next(text for text in texts if text)
        assert client.abort("abort-me") == ["abort-me"]
        said += "".join(texts)
        assert stream.finished is not None
        kept = stream.finished.usage
    assert session.save().token_count == kept.prompt_tokens + kept.completion_tokens


FAULTS: tuple[tuple[str, type[CallError], str], ...] = (
    ("infer n=2", InvalidRequest, "INVALID_REQUEST"),
    ("infer bad id", InvalidRequest, "INVALID_REQUEST"),
    ("infer without a prompt", InvalidRequest, "INVALID_REQUEST"),
    ("infer bos again", InvalidRequest, "INVALID_REQUEST"),
    ("snapshot without a session", InvalidRequest, "INVALID_REQUEST"),
    ("save nobody", NotFound, "SESSION_NOT_FOUND"),
    ("save wrong version", PreconditionFailed, "VERSION_MISMATCH"),
    ("save large", InvalidRequest, "INVALID_REQUEST"),
    ("restore nobody", NotFound, "SESSION_NOT_FOUND"),
    ("restore no version", NotFound, "SNAPSHOT_NOT_FOUND"),
    ("get nobody", NotFound, "SESSION_NOT_FOUND"),
    ("delete nobody", NotFound, "SESSION_NOT_FOUND"),
    ("list badly", InvalidRequest, "INVALID_REQUEST"),
    ("keep nothing", InvalidRequest, "INVALID_REQUEST"),
    ("export nothing", InvalidRequest, "INVALID_REQUEST"),
)


@pytest.mark.parametrize(("fault", "kind", "reason"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_what_cannot_be_done_is_refused_with_its_reason(
    client: Client, fault: str, kind: type[CallError], reason: str
) -> None:
    session, snapshots = client.session("faults"), client.snapshots
    if not any(found.session_id == "faults" for found in client.sessions.list()):
        session.infer("hello", max_tokens=2)
        session.save()
    calls = {
        "infer n=2": lambda: session.infer("hello", n=2),
        "infer bad id": lambda: client.infer("hello", session_id="no spaces"),
        "infer without a prompt": lambda: client.session("new").infer(),
        "infer bos again": lambda: session.infer("hello", add_special=True),
        "snapshot without a session": lambda: client.infer("hello", snapshot_afterwards={"labels": {"a": "b"}}),
        "save nobody": lambda: client.session("nobody").save(),
        "save wrong version": lambda: session.save(expected_version=77),
        "save large": lambda: client.sessions.save("faults", bytes(5 << 20)),
        "restore nobody": lambda: client.session("nobody").restore(),
        "restore no version": lambda: session.restore(version=99),
        "get nobody": lambda: client.sessions.get("nobody"),
        "delete nobody": lambda: client.session("nobody").delete(),
        "list badly": lambda: client.call(snapshots.List, snapshot_pb2.ListRequest(page_size=5000)),
        "keep nothing": lambda: client.call(snapshots.Compact, snapshot_pb2.CompactRequest(keep_versions=0)),
        "export nothing": lambda: (
            client.sessions.export("nobody") and None
            if fault != "export nothing"
            else call_stream(client, snapshot_pb2.ExportStateRequest())
        ),
    }
    with pytest.raises(kind) as caught:
        calls[fault]()
    assert caught.value.reason == reason


def call_stream(client: Client, request: snapshot_pb2.ExportStateRequest) -> None:
    client.call(lambda message, timeout: list(client.snapshots.ExportState(message, timeout=timeout)), request)


def test_a_broken_import_keeps_nothing(client: Client) -> None:
    ask(client, "whole-state", PROMPT, 6)
    client.session("whole-state").save(b"x" * 5000)
    state = client.sessions.export("whole-state")

    def send(*parts: dict[str, Any]) -> None:
        client.call(client.snapshots.ImportState, iter([snapshot_pb2.ImportStateRequest(**part) for part in parts]))

    header = {"header": snapshot_pb2.ImportStateHeader(session_id="broken", state=state.header)}
    good = snapshot_pb2.StateChunk(offset_bytes=0, content=b"abc", crc32c=0x364B3FB7)
    end = {"end": snapshot_pb2.StateEnd(agent_state_bytes=3, agent_state_sha256=hashlib.sha256(b"abc").digest())}
    chunk = {"agent_state": good}
    forged = snapshot_pb2.ImportStateHeader(session_id="broken", state=state.header)
    forged.state.session.token_ids[0] = 1 << 30
    for parts, reason in (
        ((header, chunk), "INVALID_REQUEST"),
        ((chunk, end), "INVALID_REQUEST"),
        ((header, {"agent_state": snapshot_pb2.StateChunk(content=b"abc", crc32c=1)}, end), "INTEGRITY"),
        ((header, {"agent_state": snapshot_pb2.StateChunk(offset_bytes=9, content=b"abc")}, end), "INVALID_REQUEST"),
        ((header, chunk, {"end": snapshot_pb2.StateEnd(agent_state_bytes=3)}), "INTEGRITY"),
        (({"header": forged}, chunk, end), "INTEGRITY"),
    ):
        with pytest.raises(CallError) as caught:
            send(*parts)
        assert caught.value.reason == reason, parts
    assert not [found for found in client.sessions.list() if found.session_id == "broken"]


GARBAGE = (b"\xff\xff", b"\x00\x7c", b"\x80\xff", b"\x80\x7f", b"\xff\x7e")
"""The upper bytes of floats: NaN, an infinity of f16, those of f32, and a number that no model computes."""


@pytest.mark.parametrize("cache_type", ["f32", "f16"])
def test_pages_of_garbage_are_refused_at_import_and_computed_again_at_restore(
    model: Path, tmp_path: Path, cache_type: str
) -> None:
    flags = ("--state-dir", str(tmp_path), "--cache-type", cache_type)
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        whole = answer_of(ask(client, "whole", PROMPT, 20))
        before = answer_of(ask(client, "s", PROMPT, 9))
        client.session("s").save(b"mine")
        state = client.sessions.export("s")
        size = np.dtype(np.float32 if cache_type == "f32" else np.float16).itemsize
        garbage = [bytes(size - 2) + upper + state.key_value[size:] for upper in GARBAGE]
        garbage = [content for content in garbage if problem_of(np.frombuffer(content, np.uint8), *[cache_type] * 2)]
        assert len(garbage) >= 3
        for content in garbage:
            with pytest.raises(DataLoss, match="pages in key_value") as caught:
                client.sessions.import_state(ExportedState(state.header, b"", content), "forged")
            assert caught.value.reason == "INTEGRITY"
        assert not list(client.sessions.list("forged"))
    with StateSnapshotManager(model, SnapshotOptions(state_dir=str(tmp_path))) as manager:
        manager.save(state.header, agent_state=b"mine", key_value=garbage[0])
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        found = client.session("s").restore()
        assert (found.fidelity, found.agent_state) == (snapshot_pb2.RESTORE_FIDELITY_RECOMPUTED, b"mine")
        assert "saved pages cannot be used: they hold a value that is no finite number" in found.reason
        assert before + answer_of(ask(client, "s", None, 11)) == whole


@pytest.mark.parametrize("cache_type", ["f32", "bf16", "f16"])
def test_pages_of_the_largest_numbers_make_no_logit_infinite(model: Path, tmp_path: Path, cache_type: str) -> None:
    flags = ("--state-dir", str(tmp_path), "--cache-type", cache_type)
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        ask(client, "s", PROMPT, 40)
        client.session("s").save()
        state = client.sessions.export("s")
        kind = CacheType[cache_type.upper()]
        largest = encode(np.array([VALUE_MAX[kind]], np.float32), kind).tobytes()
        content = largest * (len(state.key_value) // len(largest))
        client.sessions.import_state(ExportedState(state.header, b"", content), "large")
        assert client.session("large").restore().fidelity == BIT_EXACT
        assert len(answer_of(ask(client, "large", " and", 6))) == 6


def test_versions_are_listed_deleted_and_compacted(client: Client) -> None:
    session = client.session("kept")
    ask(client, "kept", PROMPT, 4)
    for step in range(3):
        session.save(bytes(100_000), step_number=step, labels={"step": str(step)})
    assert [found.version for found in client.sessions.list("kept", all_versions=True)] == [1, 2, 3]
    assert [found.version for found in client.sessions.list(labels={"step": "2"})] == [3]
    deleted = session.delete([1])
    assert (deleted.deleted_versions, deleted.reclaimable_bytes > 100_000) == (1, True)
    compacted = client.sessions.compact(keep_versions=1)
    assert compacted.dropped_versions >= 1
    assert compacted.bytes_after < compacted.bytes_before
    assert [found.version for found in session.versions()] == [3]


def test_deleting_all_of_a_session_ends_it(client: Client) -> None:
    session = client.session("ended")
    first = answer_of(ask(client, "ended", PROMPT, 4))
    assert session.delete().deleted_versions == 0
    assert answer_of(ask(client, "ended", PROMPT, 4)) == first, "it begins anew"
    session.delete()


def test_a_folder_that_cannot_be_written_to_stops_no_answer(model: Path) -> None:
    check_unsaveable(model, Path("/sys"), "READ_ONLY")  # which takes no file from root either


def test_a_state_folder_that_is_not_there_stops_no_answer(model: Path, tmp_path: Path) -> None:
    check_unsaveable(model, tmp_path / "missing", "STATE_FILE_NOT_FOUND")


def check_unsaveable(model: Path, folder: Path, reason: str) -> None:
    with serving(model, "--state-dir", str(folder)) as served, Client(served.address, retries=False) as client:
        before = answer_of(ask(client, "s", PROMPT, 3))
        for call in (
            client.session("s").save,
            lambda: client.infer(PROMPT, session_id="t", snapshot_afterwards={"labels": {"a": "b"}}),
        ):
            with pytest.raises(CallError) as caught:
                call()
            assert caught.value.reason == reason
        whole = answer_of(client.infer(PROMPT, max_tokens=6, return_options=RETURNS, **SAMPLING))
        assert before + answer_of(ask(client, "s", None, 3)) == whole


def test_two_servers_of_one_model_share_what_is_saved_but_one_saves(model: Path, tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path))
    with (
        serving(model, *flags) as first,
        serving(model, *flags) as second,
        Client(first.address, retries=False) as one,
        Client(second.address, retries=False) as two,
    ):
        said = answer_of(ask(one, "s", PROMPT, 9))
        one.session("s").save()
        more = answer_of(ask(two, "s", None, 9))
        with pytest.raises(PreconditionFailed) as caught:
            two.session("s").save()
        assert caught.value.reason == "STATE_FILE_LOCKED"
        assert said + more == answer_of(ask(one, "whole", PROMPT, 18))


def test_a_server_that_ends_finishes_the_save_that_has_begun(model: Path, tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path))
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        afterwards = {"agent_state": bytes(3 << 20)}
        with client.session("s").stream(PROMPT, max_tokens=300, snapshot_afterwards=afterwards, **SAMPLING) as stream:
            next(text for text in stream.texts() if text)
            served.process.send_signal(signal.SIGTERM)
            for _ in stream:
                pass
            assert stream.finished is not None
            assert stream.finished.snapshot.version == 1
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        assert client.session("s").restore().snapshot.key_value_bytes > 0


def test_a_session_goes_over_to_another_cache_type_and_back(model: Path, tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path))
    with serving(model, *flags) as served, Client(served.address, retries=False) as client:
        ask(client, "s", PROMPT, 9)
        client.session("s").save()
    with serving(model, *flags, "--cache-type", "f32") as served, Client(served.address, retries=False) as client:
        session = client.session("s")
        found = session.restore()
        assert (found.fidelity, "f16" in found.reason) == (snapshot_pb2.RESTORE_FIDELITY_APPROXIMATE, True)
        assert len(answer_of(ask(client, "s", None, 4))) == 4
        found = session.restore(version=1, fidelity_min=snapshot_pb2.RESTORE_FIDELITY_RECOMPUTED)
        assert found.fidelity == snapshot_pb2.RESTORE_FIDELITY_RECOMPUTED
        whole = answer_of(client.infer([*history(client, "s")], max_tokens=6, return_options=RETURNS, **SAMPLING))
        assert answer_of(ask(client, "s", None, 6)) == whole, "as if it had been computed here from the start"
        with pytest.raises(PreconditionFailed) as caught:
            session.restore(version=1, fidelity_min=BIT_EXACT)
        assert caught.value.reason == "RESTORE_FIDELITY"


def test_pages_rounded_to_eight_bits_take_half_and_are_said_to_be_near(client: Client) -> None:
    ask(client, "rounded", PROMPT, 9)
    session = client.session("rounded")
    exact = session.save()
    retention = snapshot_pb2.CACHE_RETENTION_PAGES_Q8_0
    request = snapshot_pb2.SaveRequest(session_id="rounded", cache_retention=retention)
    rounded = client.call(client.snapshots.Save, request).snapshot
    assert rounded.key_value_bytes < 0.6 * exact.key_value_bytes
    assert session.restore().fidelity == snapshot_pb2.RESTORE_FIDELITY_APPROXIMATE
    assert len(answer_of(ask(client, "rounded", None, 4))) == 4
    assert session.restore(version=2, fidelity_min=BIT_EXACT).fidelity == BIT_EXACT
    again = answer_of(ask(client, "rounded", None, 6))
    session.restore(version=1)
    assert answer_of(ask(client, "rounded", None, 6)) == again


def test_what_grew_from_rounded_pages_is_not_said_to_be_exact_once_it_is_computed_again(client: Client) -> None:
    ask(client, "grown", PROMPT, 30)
    session = client.session("grown")
    retention = snapshot_pb2.CACHE_RETENTION_PAGES_Q8_0
    client.call(client.snapshots.Save, snapshot_pb2.SaveRequest(session_id="grown", cache_retention=retention))
    session.restore()
    ask(client, "grown", " and", 9)
    session.save()
    session.restore(version=2)  # what grew is saved and restored again before it is saved without pages
    with_pages, without = session.save(), session.save(with_pages=False)
    live = answer_of(ask(client, "grown", None, 9))
    assert session.restore(version=with_pages.version).fidelity == BIT_EXACT
    assert answer_of(ask(client, "grown", None, 9)) == live
    found = session.restore(version=without.version)
    assert found.fidelity == snapshot_pb2.RESTORE_FIDELITY_RECOMPUTED
    assert "were converted from q8_0" in found.reason
    assert answer_of(ask(client, "grown", None, 9)) != live
    recomputed = session.save(with_pages=False)
    assert session.restore(version=recomputed.version).fidelity == BIT_EXACT, "what was computed again is exact again"


def history(client: Client, session_id: str) -> list[int]:
    """Tokens of a saved session."""
    return list(client.sessions.export(session_id).header.session.token_ids)


def test_another_model_file_of_the_same_tokens_goes_on_and_says_so(model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", tensor_type="Q4_0", context=4000)
    with serving(model, "--state-dir", str(tmp_path)) as served, Client(served.address, retries=False) as client:
        ask(client, "moved", PROMPT, 9)
        client.session("moved").save(b"mine")
        with (tmp_path / "moved.session").open("wb") as file:
            client.session("moved").export_to(file)
    with serving(other, "--state-dir", str(tmp_path)) as served, Client(served.address, retries=False) as client:
        session = client.session("moved")
        with (tmp_path / "moved.session").open("rb") as file:
            session.import_from(file)
        found = session.restore()
        assert found.fidelity == snapshot_pb2.RESTORE_FIDELITY_RECOMPUTED
        assert "another model file" in found.reason
        assert (found.agent_state, found.recomputed_tokens) == (b"mine", found.snapshot.token_count)
        whole = answer_of(client.infer(history(client, "moved"), max_tokens=6, return_options=RETURNS, **SAMPLING))
        assert answer_of(ask(client, "moved", None, 6)) == whole


def test_a_model_of_other_tokens_refuses_and_gives_the_bytes_all_the_same(model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", vocabulary=331, context=4000)
    with serving(model, "--state-dir", str(tmp_path)) as served, Client(served.address, retries=False) as client:
        client.session("alien").infer([1, 2, 3], max_tokens=3, allowed_token_ids=[5, 6])
        client.session("alien").save(b"mine")
        state = client.sessions.export("alien")
    with serving(other, "--state-dir", str(tmp_path)) as served, Client(served.address, retries=False) as client:
        client.sessions.import_state(state)
        for call in (client.session("alien").restore, lambda: client.session("alien").infer("hello", max_tokens=1)):
            with pytest.raises(PreconditionFailed) as caught:
                call()
            assert caught.value.reason == "MODEL_MISMATCH"
        assert client.sessions.get("alien", return_agent_state=True).agent_state == b"mine"


def test_a_tail_of_the_model_itself_keeps_sessions_and_the_model(model: Path, tmp_path: Path) -> None:
    own = Path(shutil.copy(model, tmp_path / "own.gguf"))
    with serving(own, "--state", "model") as served, Client(served.address, retries=False) as client:
        model_id = client.model().model_id
        before = ask(client, "s", PROMPT, 9)
        client.session("s").save()
    with serving(own, "--state", "model") as served, Client(served.address, retries=False) as client:
        assert client.model().model_id == model_id
        assert client.session("s").restore().fidelity == BIT_EXACT
        after = ask(client, "s", None, 11)
        whole = answer_of(client.infer(PROMPT, max_tokens=20, return_options=RETURNS, **SAMPLING))
        assert answer_of(before) + answer_of(after) == whole


def test_nothing_but_sessions_holds_pages_and_deleting_them_frees_all(client: Client) -> None:
    for found in {snapshot.session_id for snapshot in client.sessions.list()}:
        client.session(found).delete()
    ask(client, "last", PROMPT, 50)
    assert client.load().pages_used > 0
