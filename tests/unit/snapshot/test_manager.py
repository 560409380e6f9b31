from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import (
    ExhaustedError,
    IntegrityError,
    InvalidRequestError,
    MagnitudeError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from magnitude_service.snapshot import Durability, SnapshotOptions, StateSnapshotManager
from magnitude_service.snapshot import limits as limits_module
from magnitude_service.snapshot.sidecar import sidecar_path
from magnitude_service.snapshot.vfs import OperatingSystemFile
from tests.support import gguf_bytes
from tests.support.serving import environment


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_bytes.write_model(tmp_path / "M.gguf")


@pytest.fixture
def manager(model: Path) -> Iterator[StateSnapshotManager]:
    with StateSnapshotManager(model) as manager:
        yield manager


def header(session_id: str = "agent/one", **labels: str) -> snapshot_pb2.StateHeader:
    return snapshot_pb2.StateHeader(
        snapshot=snapshot_pb2.Snapshot(
            session_id=session_id, model="tiny", model_id="ab" * 32, token_count=3, cache_type="f16", labels=labels
        ),
        session=snapshot_pb2.SessionState(
            state_version=1,
            token_ids=[5, 6, 7],
            runs=[snapshot_pb2.TokenRun(kind=snapshot_pb2.TOKEN_KIND_PROMPT, count=3)],
            sampler=snapshot_pb2.SamplerState(seed=9, draw=4, window=[6, 7], grammar_state=b"\x00\xff"),
            decoder=snapshot_pb2.DecoderState(pending_bytes=b"\xf0\x9f", held_text="</"),
        ),
        page_layout=snapshot_pb2.PageLayout(layout_version=1, layers=2),
    )


def test_what_was_saved_comes_back_after_a_restart_in_every_part(model: Path) -> None:
    pages = np.arange(10_000, dtype=np.float16)
    with StateSnapshotManager(model) as manager:
        saved = manager.save(
            header(step="search"), agent_state=b"draft", parts={"report.pdf": b"%PDF" * 5000}, key_value=pages
        )
    assert (saved.version, saved.parent_version) == (1, 0)
    assert (saved.agent_state_bytes, saved.key_value_bytes) == (20_005, 20_000)
    with StateSnapshotManager(model) as manager:
        restored = manager.restore("agent/one")
        assert manager.get("agent/one") == saved == restored.snapshot
    assert restored.session == header().session
    assert restored.page_layout == header().page_layout
    assert restored.agent_state.tobytes() == b"draft"
    assert restored.parts["report.pdf"].tobytes() == b"%PDF" * 5000
    assert restored.key_value is not None
    np.testing.assert_array_equal(restored.key_value.view(np.float16), pages)
    assert restored.passed_over == ()


def test_blobs_are_read_only_views_of_the_file(manager: StateSnapshotManager) -> None:
    manager.save(header(), agent_state=b"x" * 100_000)
    view = manager.restore("agent/one").agent_state
    assert view.base is not None
    assert not view.flags.writeable


def test_the_state_file_is_the_owners_alone(manager: StateSnapshotManager) -> None:
    assert manager.path.stat().st_mode & 0o077 == 0


def test_versions_count_up_and_know_what_they_grew_from(manager: StateSnapshotManager) -> None:
    for version in range(1, 4):
        saved = manager.save(header(), agent_state=b"%d" % version)
        assert (saved.version, saved.parent_version) == (version, version - 1)
    branch = header()
    branch.snapshot.parent_version = 1
    assert manager.save(branch, agent_state=b"4").parent_version == 1
    assert manager.restore("agent/one", 2).agent_state.tobytes() == b"2"
    assert branch.snapshot.version == 0, "what the caller handed in is not changed"


def test_without_an_agent_state_the_last_one_and_its_parts_are_taken_over(manager: StateSnapshotManager) -> None:
    manager.save(header(), agent_state=b"draft", parts={"a": b"part"}, key_value=b"pages")
    second = manager.save(header())
    restored = manager.restore("agent/one")
    assert restored.snapshot.version == 2
    assert restored.agent_state.tobytes() == b"draft"
    assert restored.parts["a"].tobytes() == b"part"
    assert restored.key_value is None, "pages belong to the tokens of their own version"
    assert second.agent_state_bytes == 9
    assert manager.save(header("new")).agent_state_bytes == 0


@pytest.mark.parametrize("expected", [0, 2])
def test_a_save_that_expects_another_version_is_refused_and_nothing_is_saved(
    manager: StateSnapshotManager, expected: int
) -> None:
    manager.save(header(), agent_state=b"1", expected_version=0)
    with pytest.raises(PreconditionError, match=f"at version 1, not {expected}") as caught:
        manager.save(header(), agent_state=b"2", expected_version=expected)
    assert caught.value.reason == "VERSION_MISMATCH"
    assert manager.save(header(), agent_state=b"2", expected_version=1).version == 2


def test_old_versions_go_as_many_as_are_too_many(model: Path) -> None:
    with StateSnapshotManager(model, SnapshotOptions(state_versions_kept=2)) as manager:
        for _ in range(5):
            manager.save(header(), agent_state=b"")
    with StateSnapshotManager(model) as manager:
        assert [each.version for each in manager.list("agent/one", all_versions=True).snapshots] == [4, 5]


def test_a_session_that_was_not_saved_for_long_ends(model: Path) -> None:
    now = [10**18]
    options = SnapshotOptions(state_ttl_seconds=60)
    with StateSnapshotManager(model, options, clock=lambda: now[0]) as manager:
        manager.save(header("old"), agent_state=b"")
        now[0] += 50 * 10**9
        manager.save(header("young"), agent_state=b"")
        now[0] += 20 * 10**9
        manager.maintain()
        assert [each.session_id for each in manager.list().snapshots] == ["young"]


def test_a_prefix_holds_no_more_than_its_quota(model: Path) -> None:
    with StateSnapshotManager(model, SnapshotOptions(state_quota_bytes=50_000)) as manager:
        manager.save(header("team/a"), agent_state=bytes(30_000))
        with pytest.raises(ExhaustedError, match="Sessions of team take 36,864 bytes; 36,864 more") as caught:
            manager.save(header("team/b"), agent_state=bytes(30_000))
        assert caught.value.reason == "QUOTA_EXCEEDED"
        manager.save(header("other"), agent_state=bytes(30_000))
        manager.delete("team/a")
        manager.save(header("team/b"), agent_state=bytes(30_000))


def test_a_save_that_takes_the_place_of_an_older_version_fits_into_a_full_quota(model: Path) -> None:
    with StateSnapshotManager(model, SnapshotOptions(state_quota_bytes=40_000, state_versions_kept=1)) as manager:
        for version in range(1, 4):
            assert manager.save(header("team/a"), agent_state=bytes(30_000)).version == version


def test_deleted_versions_are_gone_for_good_and_the_rest_stays(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        for _ in range(3):
            manager.save(header(), agent_state=b"x")
        manager.save(header("two"), agent_state=b"y")
        assert manager.delete("agent/one", [1, 3]) == (2, 8192)
        assert manager.get("agent/one").version == 2
        assert manager.delete("two")[0] == 1
    with StateSnapshotManager(model) as manager:
        assert [each.version for each in manager.list(all_versions=True).snapshots] == [2]
        with pytest.raises(NotFoundError, match="no saved session two") as caught:
            manager.restore("two")
        assert caught.value.reason == "SESSION_NOT_FOUND"


def test_a_deletion_that_names_one_wrong_version_deletes_none(manager: StateSnapshotManager) -> None:
    manager.save(header(), agent_state=b"x")
    with pytest.raises(NotFoundError, match="has no version 2; kept are 1") as caught:
        manager.delete("agent/one", [1, 2])
    assert caught.value.reason == "SNAPSHOT_NOT_FOUND"
    assert manager.get("agent/one").version == 1


def test_a_version_still_knows_what_it_grew_from_when_that_is_deleted(manager: StateSnapshotManager) -> None:
    manager.save(header(), agent_state=b"1")
    grown = header()
    grown.snapshot.parent_version = manager.save(header(), agent_state=b"2").version
    manager.delete("agent/one", [2])
    again = manager.save(grown, agent_state=b"again")
    assert (again.version, again.parent_version) == (3, 2)


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_deleted_versions_number_is_never_given_again(model: Path, state: str) -> None:
    options = SnapshotOptions(state=state, state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:
        for id in ("newest", "all"):
            for _ in range(3):
                manager.save(header(id), agent_state=b"old")
        manager.delete("newest", [3])
        manager.delete("all")
        assert manager.save(header("newest"), agent_state=b"").version == 4
        manager.delete("newest", [4])
    for is_compacted in (False, True, True):  # what the log says, then what only the index does
        with StateSnapshotManager(model, options) as manager:
            if is_compacted:
                manager.compact()
            assert manager._store.table.next_version("newest") == 5
            assert manager._store.table.next_version("all") == 4
    with StateSnapshotManager(model, options) as manager:
        with pytest.raises(PreconditionError, match="is at version 2, not 3"):
            manager.save(header("newest"), agent_state=b"of somebody who has seen the old 3", expected_version=3)
        assert manager.save(header("newest"), agent_state=b"", expected_version=2).version == 5
        assert manager.save(header("all"), agent_state=b"", expected_version=0).version == 4
        assert manager._store.table.given == {}, "the live versions say as much"


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize("displace", [remove, move, replace])
@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_nothing_is_acknowledged_into_a_file_that_lost_its_name(
    model: Path, state: str, displace: Callable[[Path], None]
) -> None:
    with StateSnapshotManager(model, SnapshotOptions(state=state)) as manager:
        manager.save(header(), agent_state=b"1")
        held = manager.restore("agent/one")
        displace(manager.path)
        left = manager.path.read_bytes() if manager.path.exists() else None
        for call in (
            lambda: manager.save(header(), agent_state=b"2"),
            lambda: manager.save(header(), agent_state=b"2", durability=Durability.RELAXED),
            lambda: manager.delete("agent/one"),
            manager.compact,
            manager.maintain,
        ):
            with pytest.raises(
                PreconditionError, match=f"{manager.path} was .* Put it back .* load the model"
            ) as caught:
                call()
            assert caught.value.reason == "STATE_FILE_REPLACED"
        assert (manager.path.read_bytes() if manager.path.exists() else None) == left, "what lies there is left alone"
        assert held.agent_state.tobytes() == b"1"


def test_a_file_that_gets_its_name_back_takes_saves_again(manager: StateSnapshotManager) -> None:
    elsewhere = manager.path.with_name("elsewhere")
    manager.path.rename(elsewhere)
    with pytest.raises(PreconditionError, match="was removed or renamed"):
        manager.save(header(), agent_state=b"1")
    with pytest.raises(PreconditionError, match="was removed or renamed"):
        manager.save(header(), agent_state=b"2")
    elsewhere.rename(manager.path)
    manager.save(header(), agent_state=b"3")
    found = [manager.restore("agent/one", version).agent_state.tobytes() for version in (1, 2)]
    assert found == [b"1", b"3"], "what was not acknowledged is there whole, and only the first was written at all"


def test_upkeep_is_the_writers_and_ends_with_it(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        manager.save(header(), agent_state=b"1")
        with StateSnapshotManager(model, read_only=True) as reader, pytest.raises(PreconditionError) as caught:
            reader.maintain()
        assert caught.value.reason == "READ_ONLY"
    with pytest.raises(UnavailableError, match="is closed"):
        manager.maintain()


@pytest.mark.parametrize("is_quick", [True, False])
def test_what_was_written_before_a_close_is_acknowledged_after_it(model: Path, is_quick: bool) -> None:
    with StateSnapshotManager(model) as manager:
        manager.save(header(), agent_state=b"1")
    manager._store.check_in_place(is_quick=is_quick)  # `close` made it durable; the descriptor is nobody's any more


@pytest.mark.parametrize("durability", Durability)
def test_a_file_that_loses_its_name_while_a_save_is_written_acknowledges_nothing(
    model: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateSnapshotManager(model) as manager:
        write = OperatingSystemFile.pwritev

        def remove_and_write(self: OperatingSystemFile, parts: Sequence[memoryview], offset: int) -> int:
            manager.path.unlink(missing_ok=True)
            return write(self, parts, offset)

        monkeypatch.setattr(OperatingSystemFile, "pwritev", remove_and_write)
        with pytest.raises(PreconditionError, match="was removed or renamed"):
            manager.save(header(), agent_state=b"1", durability=durability)


def test_pages_of_a_list_come_in_order_and_miss_nothing(manager: StateSnapshotManager) -> None:
    for number in range(7):
        manager.save(header(f"s{number}", parity=str(number % 2)), agent_state=b"")
    seen, token = [], ""
    while True:
        page = manager.list(labels={"parity": "0"}, page_size=2, page_token=token)
        seen += [each.session_id for each in page.snapshots]
        manager.save(header("s1"), agent_state=b"")  # saves meanwhile move nothing
        token = page.next_page_token
        if not token:
            break
    assert seen == ["s0", "s2", "s4", "s6"]


def test_all_versions_are_listed_where_asked_for(manager: StateSnapshotManager) -> None:
    for id in ("b", "a", "b"):
        manager.save(header(id), agent_state=b"")
    found = manager.list(all_versions=True, page_size=2)
    assert [(each.session_id, each.version) for each in found.snapshots] == [("a", 1), ("b", 1)]
    rest = manager.list(all_versions=True, page_size=2, page_token=found.next_page_token)
    assert [(each.session_id, each.version) for each in rest.snapshots] == [("b", 2)]
    assert manager.list("nobody").snapshots == []


@pytest.mark.parametrize("token", ["x", "1@", "@a", "-1@a", "1@ü", "9" * 30 + "@a"])
def test_a_page_token_of_somebody_elses_making_is_refused(manager: StateSnapshotManager, token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        manager.list(page_token=token)


BAD_LABELS = [{f"k{number}": "" for number in range(17)}, {"": "v"}, {"k" * 65: ""}, {"k": "v" * 257}]


@pytest.mark.parametrize("labels", BAD_LABELS, ids=["count", "empty", "key", "value"])
def test_labels_have_limits(manager: StateSnapshotManager, labels: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="label"):
        manager.save(header(**labels), agent_state=b"")


@pytest.mark.parametrize("session_id", ["", "x" * 129, "ümlaut", "a b", "a\n", "a\0"])
def test_a_session_id_is_letters_digits_and_a_few_marks(manager: StateSnapshotManager, session_id: str) -> None:
    for call in (
        lambda: manager.save(header(session_id), agent_state=b""),
        lambda: manager.restore(session_id),
        lambda: manager.delete(session_id),
    ):
        with pytest.raises(InvalidRequestError, match="session_id"):
            call()


def test_an_agent_state_has_a_limit(manager: StateSnapshotManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "AGENT_STATE_BYTES_MAX", 1000)
    with pytest.raises(InvalidRequestError, match="has 1,001 bytes; at most 1,000"):
        manager.save(header(), agent_state=bytes(1000), parts={"a": b"x"})
    manager.save(header(), agent_state=bytes(1000), key_value=bytes(5000))


BAD_PARTS = [{"": b""}, {"x" * 65: b""}, {str(number): b"" for number in range(63)}]


@pytest.mark.parametrize("parts", BAD_PARTS, ids=["empty", "long", "many"])
def test_parts_have_limits(manager: StateSnapshotManager, parts: dict[str, bytes]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        manager.save(header(), agent_state=b"", parts=parts)
    assert caught.value.field == "parts"


def test_a_restore_of_the_latest_passes_over_a_damaged_one_and_says_so(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StateSnapshotManager(model) as manager:
        manager.save(header(), agent_state=b"sound" * 1000)
        manager.save(header(), agent_state=b"later" * 1000)
        data = manager.path.read_bytes()
        with manager.path.open("r+b") as file:
            file.seek(data.index(b"laterlater") + 2)
            file.write(b"!")
        with caplog.at_level(logging.WARNING):
            restored = manager.restore("agent/one")
        assert restored.agent_state.tobytes() == b"sound" * 1000
        assert (restored.snapshot.version, restored.passed_over) == (1, (2,))
        assert "version 2 of session agent/one" in caplog.text
        with pytest.raises(IntegrityError, match="the checksum of agent_state is wrong") as caught:
            manager.restore("agent/one", 2)
        assert caught.value.reason == "TAIL_CORRUPT"


def test_a_session_of_which_every_version_is_damaged_is_data_loss(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        for _ in range(2):
            manager.save(header(), agent_state=b"lost" * 1000)
        data = manager.path.read_bytes().replace(b"lostlost", b"lostlosT")
        with manager.path.open("r+b") as file:
            file.write(data)
        with pytest.raises(IntegrityError, match="version 1 of session agent/one"):
            manager.restore("agent/one")


def test_the_options_need_neither_numpy_nor_protobuf() -> None:
    code = "import sys, magnitude_service.snapshot.options; assert not {'numpy', 'google.protobuf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_a_file_cut_under_a_reader_gives_an_error_and_no_signal(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        manager.save(header(), agent_state=bytes(300_000))
        path = manager.path
    with StateSnapshotManager(model, read_only=True) as reader:
        reader.get("agent/one")
        os.truncate(path, 150_000)
        with pytest.raises(MagnitudeError):
            reader.restore("agent/one")


def test_a_sidecar_lies_beside_the_model_or_where_one_says(model: Path, tmp_path: Path) -> None:
    assert sidecar_path(model, "") == tmp_path / "M.state.gguf"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with StateSnapshotManager(model, SnapshotOptions(state_dir=str(elsewhere))) as manager:
        assert manager.path == elsewhere / "M.state.gguf"


def test_a_folder_that_is_not_there_is_an_error_that_names_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nowhere/M\.state\.gguf cannot be created"):
        StateSnapshotManager(model, SnapshotOptions(state_dir=str(tmp_path / "nowhere")))


def test_something_else_under_the_sidecars_name_is_left_alone(model: Path) -> None:
    path = sidecar_path(model, "")
    path.write_bytes(model.read_bytes())
    with pytest.raises(PreconditionError, match="is no file of sessions"):
        StateSnapshotManager(model)
    assert path.read_bytes() == model.read_bytes()


def test_there_is_nothing_to_read_where_nothing_was_saved(model: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be opened"):
        StateSnapshotManager(model, read_only=True)


def test_a_closed_manager_says_so(model: Path) -> None:
    manager = StateSnapshotManager(model)
    manager.close()
    manager.close()
    for call in (manager.list, lambda: manager.save(header(), agent_state=b""), lambda: manager.get("a")):
        with pytest.raises(UnavailableError, match="is closed"):
            call()


def test_many_threads_save_at_once_and_every_version_is_there(model: Path) -> None:
    with StateSnapshotManager(model, SnapshotOptions(state_versions_kept=0)) as manager:

        def save(session_id: str) -> None:
            for number in range(10):
                manager.save(header(session_id), agent_state=b"%d" % number)

        threads = [threading.Thread(target=save, args=(f"s{number % 3}",)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with StateSnapshotManager(model, read_only=True) as reader:
        for session_id in ("s0", "s1", "s2"):
            found = reader.list(session_id, all_versions=True).snapshots
            assert [each.version for each in found] == list(range(1, 21))


def test_ten_thousand_sessions_open_in_50_ms_and_in_a_second_without_their_index(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        for number in range(10_000):
            manager.save(header(f"s{number}"), agent_state=b"x", durability=Durability.RELAXED)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        opened = StateSnapshotManager(model, read_only=True)
        seconds.append(time.perf_counter() - begin)
        opened.close()
    assert min(seconds) < 0.05, seconds
    path = sidecar_path(model, "")
    os.truncate(path, path.stat().st_size - 1)
    begin = time.perf_counter()
    with StateSnapshotManager(model, read_only=True) as reader:
        assert time.perf_counter() - begin < 1
        assert reader.get("s9999").version == 1
        assert reader.findings
