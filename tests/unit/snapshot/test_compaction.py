from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from magnitude_service.errors import PreconditionError, UnavailableError
from magnitude_service.snapshot import Durability, SnapshotOptions, StateSnapshotManager, UpkeepThread
from magnitude_service.snapshot.compaction import new_path
from magnitude_service.snapshot.upkeep import Pace
from magnitude_service.snapshot.vfs import OperatingSystem, OperatingSystemFile
from tests.crash.workload import header
from tests.support import gguf_bytes

KIB = 1024


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_bytes.write_model(tmp_path / "M.gguf")


def disk_bytes(path: Path) -> int:
    """What a file really takes."""
    return path.stat().st_blocks * 512


def fill(manager: StateSnapshotManager) -> dict[str, bytes]:
    """Some sessions of 200 KiB, each saved three times; what is to be found."""
    for version in range(3):
        for number in range(4):
            manager.save(header(f"s{number}"), agent_state=bytes([version, number]) * 100 * KIB)
    return {f"s{number}": bytes([2, number]) * 100 * KIB for number in range(4)}


def found(manager: StateSnapshotManager) -> dict[str, bytes]:
    return {
        each.session_id: manager.restore(each.session_id).agent_state.tobytes() for each in manager.list().snapshots
    }


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_compaction_gives_back_what_was_deleted_and_changes_nothing_else(model: Path, state: str) -> None:
    options = SnapshotOptions(state=state, state_versions_kept=1, state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:
        expected = fill(manager)
        before = disk_bytes(manager.path)
        assert manager.compact(dry_run=True).bytes_after < 1000 * KIB
        assert disk_bytes(manager.path) == before
        done = manager.compact()
        assert done.bytes_before > 2400 * KIB
        assert done.bytes_after < 900 * KIB
        assert before - disk_bytes(manager.path) > 1500 * KIB
        assert found(manager) == expected
    with StateSnapshotManager(model, options) as manager:
        assert manager.findings == ()
        assert found(manager) == expected


def test_compaction_first_drops_versions_where_asked_to(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        fill(manager)
        assert manager.compact(keep_versions=2, dry_run=True).dropped_versions == 4
        assert manager.compact(keep_versions=1).dropped_versions == 8
        assert [each.version for each in manager.list(all_versions=True).snapshots] == [3] * 4


def test_a_view_of_before_stays_as_it_was_through_compaction_of_a_sidecar(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        expected = fill(manager)
        view = manager.restore("s1").agent_state
        manager.delete("s1")
        manager.compact()
        assert view.tobytes() == expected["s1"]


def test_a_model_tail_keeps_what_somebody_holds_and_what_died_just_now(model: Path) -> None:
    options = SnapshotOptions(state="model", state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:
        expected = fill(manager)
        held = manager.restore("s1")
        for number in range(4):
            manager.delete(f"s{number}")
        manager.compact()
        assert held.agent_state.tobytes() == expected["s1"]
        held_bytes = disk_bytes(manager.path)
        del held
        manager.compact()
        assert held_bytes - disk_bytes(manager.path) > 200 * KIB
        assert disk_bytes(manager.path) < 200 * KIB
    patient = SnapshotOptions(state="model", state_punch_after_seconds=600)
    with StateSnapshotManager(model, patient) as manager:
        manager.save(header("late"), agent_state=bytes(500 * KIB))
        manager.delete("late")
        manager.compact()
        assert disk_bytes(manager.path) > 500 * KIB, "a reader elsewhere may hold it still"


def test_the_dead_end_of_a_model_tail_is_cut_off_but_never_what_alone_tells_of_numbers(model: Path) -> None:
    options = SnapshotOptions(state="model", state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:

        def compacted_bytes() -> int:
            manager.compact(keep_versions=1)
            live = manager._store.table.in_file_order()[-1]
            return manager.path.stat().st_size - live.offset - live.length

        for _ in range(3):
            manager.save(header("one"), agent_state=bytes(100 * KIB))
        assert compacted_bytes() < 65 * KIB, "one index lies behind the last live segment, and nothing else"
        manager.save(header("two"), agent_state=b"")
        manager.save(header("one"), agent_state=b"")
        manager.delete("two")
        assert compacted_bytes() > 65 * KIB
        manager.save(header("two"), agent_state=b"")
        assert compacted_bytes() < 65 * KIB, "a live version tells its number itself"


def test_compaction_begins_when_enough_is_dead(model: Path) -> None:
    options = SnapshotOptions(state_versions_kept=1, state_compact_dead_ratio=0.6, state_compact_min_bytes=0)
    with StateSnapshotManager(model, options) as manager:
        manager.save(header("one"), agent_state=bytes(100 * KIB))
        manager.save(header("one"), agent_state=bytes(100 * KIB))
        inode = manager.path.stat().st_ino
        manager.maintain()
        assert manager.path.stat().st_ino == inode, "half is dead"
        manager.save(header("one"), agent_state=bytes(100 * KIB))
        manager.maintain()
        assert manager.path.stat().st_ino != inode, "two thirds are"


def test_a_model_tail_waits_until_the_dead_may_be_freed_and_writes_nothing_meanwhile(model: Path) -> None:
    now = [10**18]
    options = SnapshotOptions(
        state="model", state_versions_kept=1, state_compact_min_bytes=0, state_punch_after_seconds=60
    )
    with StateSnapshotManager(model, options, clock=lambda: now[0]) as manager:
        for _ in range(3):
            manager.save(header("one"), agent_state=bytes(100 * KIB))
        size, taken = manager.path.stat().st_size, disk_bytes(manager.path)
        for _ in range(3):
            manager.maintain()
        assert manager.path.stat().st_size == size, "two thirds are dead, but not for a minute"
        now[0] += 61 * 10**9
        held = manager.restore("one")
        manager.maintain()
        assert taken - disk_bytes(manager.path) > 150 * KIB
        assert held.agent_state.tobytes() == bytes(100 * KIB)


class Old(OperatingSystem):
    """Keeps a descriptor of the file that is compacted, to see what becomes of it; it does not count as a holder."""

    def open(self, path: Path, *, writable: bool, create: bool = False) -> OperatingSystemFile:
        file = super().open(path, writable=writable, create=create)
        if not create:
            self.descriptor = os.dup(file._descriptor)
        return file

    def stored_bytes(self) -> int:
        return os.fstat(self.descriptor).st_blocks * 512


def test_the_old_file_is_given_back_piece_by_piece_where_nobody_holds_it(model: Path) -> None:
    disk, sizes = Old(), []
    with StateSnapshotManager(model, file_system=disk) as manager:
        fill(manager)
        wait = manager._upkeep._wait
        manager._upkeep._wait = lambda seconds: (wait(seconds), sizes.append(disk.stored_bytes()))[0]  # type: ignore
        manager.compact()
        freed = [size for size in sizes if size < sizes[0]]
        assert freed == sorted(freed, reverse=True)
        assert len(set(freed)) >= 8, "2,400 KiB in pieces of 256"
        assert disk.stored_bytes() == 0


def test_closing_gives_the_rest_of_the_old_file_back_at_once(model: Path) -> None:
    disk, options = Old(), SnapshotOptions(state_compact_bytes_per_second=1 << 20)
    manager = StateSnapshotManager(model, options, file_system=disk)
    expected = fill(manager)
    for number in range(4):
        manager.delete(f"s{number}", [1, 2])
    old = manager.path.stat().st_ino
    thread = threading.Thread(target=manager.compact)
    thread.start()
    while manager.path.stat().st_ino == old:
        pass
    manager.close()
    thread.join()
    assert disk.stored_bytes() > 0, "it was cut to its end: that takes two seconds"
    with StateSnapshotManager(model) as manager:
        assert found(manager) == expected


def test_the_old_file_stays_whole_where_a_version_of_it_is_held(model: Path) -> None:
    disk = Old()
    with StateSnapshotManager(model, file_system=disk) as manager:
        expected = fill(manager)
        before, saved = disk.stored_bytes(), manager.restore("s1")
        manager.compact()
        assert disk.stored_bytes() == before
        assert saved.agent_state.tobytes() == expected["s1"]


def test_the_old_file_stays_whole_where_the_new_name_may_not_last(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OperatingSystem, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk = Old()
    with StateSnapshotManager(model, file_system=disk) as manager:
        fill(manager)
        before = disk.stored_bytes()
        monkeypatch.setattr(OperatingSystem, "sync_folder", refuse)
        with pytest.raises(PreconditionError, match="synced"):
            manager.compact()
        assert disk.stored_bytes() == before
        with pytest.raises(PreconditionError, match="takes no more saves"):
            manager.save(header("s1"))


def test_relaxed_saves_are_synced_while_the_thread_that_does_so_compacts(model: Path) -> None:
    options = SnapshotOptions(
        state_versions_kept=1,
        state_compact_min_bytes=0,
        state_compact_bytes_per_second=1 << 20,
        state_sync_interval_seconds=0.01,
    )
    with StateSnapshotManager(model, options) as manager:
        fill(manager)
        thread = UpkeepThread(manager.maintain, 0.001)
        thread.start()
        while not new_path(manager.path).exists():
            pass
        tail = manager._store.writer()
        manager.save(header("s1"), agent_state=b"", durability=Durability.RELAXED)
        number = tail.last_sequence
        while tail.durable_through < number:
            assert new_path(manager.path).exists(), "the compaction was over before the save was durable"
        manager.interrupt()
        thread.stop()


def test_maintenance_leaves_a_compaction_alone_that_somebody_asked_for(model: Path) -> None:
    options = SnapshotOptions(state_versions_kept=1, state_compact_min_bytes=0)
    with StateSnapshotManager(model, options) as manager:
        for _ in range(3):
            manager.save(header("one"), agent_state=bytes(100 * KIB))
        assert manager._upkeep._running.acquire(blocking=False)
        manager.maintain()
        manager._upkeep._running.release()


def test_saves_and_deletions_during_a_compaction_are_in_the_new_file(model: Path) -> None:
    class Meanwhile(OperatingSystem):
        """Saves and deletes when the first copy has been written."""

        is_done = False

        def open(self, path: Path, *, writable: bool, create: bool = False) -> OperatingSystemFile:
            file = super().open(path, writable=writable, create=create)
            if path.name.endswith(".new") and self.manager is not None:
                sync = file.fdatasync

                def fdatasync() -> None:
                    sync()
                    if not self.is_done and file.size() > 200 * KIB:
                        self.is_done = True
                        thread = threading.Thread(target=self.act)
                        thread.start()
                        thread.join()

                file.fdatasync = fdatasync  # type: ignore[method-assign]
            return file

        manager: StateSnapshotManager | None = None

        def act(self) -> None:
            assert self.manager
            self.manager.save(header("new"), agent_state=b"came meanwhile")
            self.manager.delete("s0")
            self.manager.delete("s1")
            self.manager.save(header("s1"), agent_state=b"begun again")  # with the number of a version that is copied

    disk = Meanwhile()
    with StateSnapshotManager(model, file_system=disk) as manager:
        expected = fill(manager)
        manager.save(header("big"), agent_state=bytes(20_000 * KIB))
        disk.manager = manager
        manager.compact()
        disk.manager = None
        assert disk.is_done
        del expected["s0"]
        wanted = expected | {"big": bytes(20_000 * KIB), "new": b"came meanwhile", "s1": b"begun again"}
        assert found(manager) == wanted
    with StateSnapshotManager(model) as manager:
        assert found(manager) == wanted


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_loses_its_name_while_it_is_compacted_is_missed_and_what_lies_there_is_left_alone(
    model: Path, is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction renames a file over the old one; it must not hide that the old one was gone, nor end another's."""
    with StateSnapshotManager(model) as manager:
        fill(manager)
        sync = OperatingSystemFile.fdatasync

        def displace_and_sync(file: OperatingSystemFile) -> None:
            monkeypatch.undo()
            manager.path.unlink()
            if is_replaced:
                manager.path.write_bytes(b"somebody's backup")
            sync(file)

        monkeypatch.setattr(OperatingSystemFile, "fdatasync", displace_and_sync)
        for call in (manager.compact, lambda: manager.save(header("s1"), agent_state=b""), manager.compact):
            with pytest.raises(PreconditionError, match="while it is written") as caught:
                call()
            assert caught.value.reason == "STATE_FILE_REPLACED"
        assert [path.name for path in model.parent.iterdir() if "state" in path.name] == ["M.state.gguf"] * is_replaced
        assert not is_replaced or manager.path.read_bytes() == b"somebody's backup"


def test_the_file_that_compaction_puts_in_the_place_is_no_strangers(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        saved, is_over = 0, threading.Event()

        def save() -> None:
            nonlocal saved
            while not is_over.wait(0.001):  # as a client that does something between two saves
                durability = Durability.RELAXED if saved % 4 else Durability.DURABLE
                manager.save(header("s"), agent_state=b"", durability=durability)
                saved += 1

        thread = threading.Thread(target=save)
        thread.start()
        for _ in range(4):
            manager.compact()
        is_over.set()
        thread.join()
        assert saved > 0
        assert manager.get("s").version == saved, "none of them failed"


def test_one_compaction_runs_at_a_time(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        fill(manager)
        assert manager._upkeep._running.acquire(blocking=False)
        with pytest.raises(UnavailableError, match="compacted already"):
            manager.compact()
        manager._upkeep._running.release()


def test_closing_ends_a_compaction_and_the_old_file_stays(model: Path) -> None:
    options = SnapshotOptions(state_compact_bytes_per_second=1 << 20)
    manager = StateSnapshotManager(model, options)
    manager.save(header("big"), agent_state=bytes(8 << 20))
    errors: list[UnavailableError] = []

    def compact() -> None:
        try:
            manager.compact()
        except UnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=compact)
    thread.start()
    while not new_path(manager.path).exists():
        pass
    manager.close()
    thread.join()
    assert "given up" in str(errors[0])
    assert not new_path(manager.path).exists()
    with StateSnapshotManager(model) as manager:
        assert found(manager) == {"big": bytes(8 << 20)}


def test_what_a_killed_compaction_left_is_removed_by_the_next_writer(model: Path) -> None:
    with StateSnapshotManager(model) as manager:
        fill(manager)
        left = new_path(manager.path)
    left.write_bytes(b"half")
    with StateSnapshotManager(model):
        assert not left.exists()


def test_a_file_system_without_holes_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OperatingSystemFile, offset: int, count: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(OperatingSystemFile, "punch", refuse)
    options = SnapshotOptions(state="model", state_punch_after_seconds=0)
    with StateSnapshotManager(model, options) as manager:
        fill(manager)
        manager.delete("s1")
        with pytest.raises(PreconditionError, match="cannot punch holes"):
            manager.compact()
        assert len(found(manager)) == 3


def test_the_pace_is_kept_over_many_pieces() -> None:
    waits: list[float] = []
    pace = Pace(1000, waits.append)
    for _ in range(10):
        pace(100)
    assert 0.9 < waits[-1] <= 1.0, "ten pieces of a tenth of a second, none of which was waited for"


def test_the_thread_calls_again_and_again_and_ends_when_told() -> None:
    calls, enough = 0, threading.Event()

    def maintain() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            enough.set()
        raise UnavailableError("not now")

    thread = UpkeepThread(maintain, 0.001)
    thread.start()
    assert enough.wait(20)
    thread.stop()
    assert calls >= 3
