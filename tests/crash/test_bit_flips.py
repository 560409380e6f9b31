"""Every byte of a small tail, damaged: no other session's last version is lost, and no wrong byte is ever returned."""

from __future__ import annotations

import pytest

from magnitude_service.errors import MagnitudeError
from magnitude_service.snapshot import StateSnapshotManager
from tests.crash.disk import Disk
from tests.crash.workload import MODEL, MODEL_BYTES, Action, Content, Run, options

STEPS = (
    Action("save", "one", b"1" * 100),
    Action("save", "two", b"2" * 4100),
    Action("save", "one", b"3" * 70),
    Action("reopen"),
    Action("save", "three", b"4" * 90),
    Action("save", "two", b"5" * 300),
)


def small_tail(state: str) -> tuple[Disk, Content]:
    """A tail with an index in its middle."""
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all(STEPS)
    run.disk.locks.clear()
    assert run.manager
    return run.disk, found_by(run.manager)


def bytes_in_use(content: bytearray, begin: int) -> list[int]:
    """Offsets of all bytes but the zeros of holes and of long paddings."""
    return [offset for offset in range(begin, len(content)) if any(content[max(offset - 40, begin) : offset + 40])]


def damage_and_read(state: str, stride: int) -> tuple[int, int]:
    """Damages every `stride`th byte, one at a time; returns how many, and how often that was noticed."""
    disk, content = small_tail(state)
    inode = max(disk.contents)
    sound = bytes(disk.contents[inode])
    changed = 0
    offsets = bytes_in_use(disk.contents[inode], 0 if state == "sidecar" else len(MODEL_BYTES))[::stride]
    for offset in offsets:
        disk.contents[inode][offset] ^= 0xFF
        with StateSnapshotManager(MODEL, options(state), file_system=disk, read_only=True) as reader:
            found = found_by(reader)
        assert lost(content, found) <= 1, f"byte {offset}"
        changed += found != content
        disk.contents[inode][offset] = sound[offset]
    return len(offsets), changed


def damage_and_write(state: str, stride: int) -> int:
    """The same, opened by a writer, which repairs, indexes and compacts; returns how many."""
    disk, content = small_tail(state)
    inode = max(disk.contents)
    sound = bytes(disk.contents[inode])
    offsets = bytes_in_use(disk.contents[inode], 65_536)[::stride]
    for offset in offsets:
        disk.contents[inode] = bytearray(sound)
        disk.contents[inode][offset] ^= 1 << offset % 8
        with StateSnapshotManager(MODEL, options(state), file_system=disk) as manager:
            assert lost(content, found_by(manager)) <= 1, f"byte {offset}"
        with StateSnapshotManager(MODEL, options(state), file_system=disk) as manager:
            assert lost(content, found_by(manager)) <= 1, f"byte {offset}"
            manager.compact()
            assert lost(content, found_by(manager)) <= 1, f"byte {offset}"
        for added in [each for each in disk.contents if each > inode]:
            del disk.contents[added]
        disk.names = {path: 1 if path == MODEL else inode for path in disk.names}
    return len(offsets)


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_damaged_byte_costs_at_most_the_version_that_it_lies_in(state: str) -> None:
    _, changed = damage_and_read(state, stride=17)
    assert changed > 80, "damage was noticed"


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_writer_that_opens_a_damaged_tail_loses_no_other_version(state: str) -> None:
    assert damage_and_write(state, stride=61) > 50


@pytest.mark.heavy
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_every_byte_of_a_small_tail_may_be_damaged(state: str) -> None:
    tried, changed = damage_and_read(state, stride=1)
    assert changed > 1500, "damage was noticed"
    written = damage_and_write(state, stride=1)
    print(f"{tried} bytes damaged before a reader ({changed} noticed), {written} before a writer")


def test_junk_behind_the_end_is_ignored_and_reported_once() -> None:
    disk, content = small_tail("sidecar")
    disk.contents[max(disk.contents)] += b"junk" * 30_000
    with StateSnapshotManager(MODEL, options("sidecar"), file_system=disk) as manager:
        assert len(manager.findings) == 1
        assert found_by(manager) == content
    with StateSnapshotManager(MODEL, options("sidecar"), file_system=disk) as manager:
        assert manager.findings == ()
        assert found_by(manager) == content


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_tail_that_is_cut_anywhere_keeps_all_before_the_cut(state: str) -> None:
    disk, content = small_tail(state)
    inode = max(disk.contents)
    sound = bytes(disk.contents[inode])
    for size in range(len(sound) - 3000, len(sound), 7):
        disk.contents[inode] = bytearray(sound[:size])
        with StateSnapshotManager(MODEL, options(state), file_system=disk) as manager:
            assert lost(content, found_by(manager)) <= 1
        disk.contents[inode] = bytearray(sound)


def found_by(manager: StateSnapshotManager) -> Content:
    """All versions that can be read."""
    found: dict[str, dict[int, bytes]] = {}
    for snapshot in manager.list(all_versions=True, page_size=1000).snapshots:
        try:
            data = manager.restore(snapshot.session_id, snapshot.version).agent_state.tobytes()
        except MagnitudeError:
            continue
        found.setdefault(snapshot.session_id, {})[snapshot.version] = data
    return found


def lost(content: Content, found: Content) -> int:
    """How many versions are gone; none may be another than it was, and none may be new."""
    for session_id, versions in found.items():
        assert versions.items() <= content[session_id].items()
    return sum(len(versions) - len(found.get(session_id, {})) for session_id, versions in content.items())
