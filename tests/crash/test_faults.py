"""The Nth file operation fails, for every N: errors are typed, what was acknowledged is there, and life goes on."""

from __future__ import annotations

import errno
import random

import pytest

from magnitude_service.errors import MagnitudeError, PreconditionError
from magnitude_service.snapshot import StateSnapshotManager
from magnitude_service.snapshot.state_file import write_state_file
from tests.crash.campaign import check, state_at_the_end
from tests.crash.disk import Disk, Fault
from tests.crash.workload import (
    MODEL,
    MODEL_BYTES,
    Action,
    Content,
    Mark,
    Run,
    actions,
    after,
    content_of,
    effect_of,
    found_on,
    header,
    options,
)

ALL_KINDS = (
    Action("save", "one", b"a" * 700),
    Action("relaxed", "two", b"b" * 9000),
    Action("save", "one", b"c"),
    Action("reopen"),
    Action("save", "two", b"d"),
    Action("delete", "one"),
    Action("compact"),
    Action("save", "one", b"e" * 5000),
    Action("compact"),
    Action("save", "two", b"f"),
)
FAULTS = (
    Fault(errno=errno.EIO),
    Fault(errno=errno.ENOSPC),
    Fault(errno=errno.EINTR),
    Fault(short_bytes=1),
    Fault(short_bytes=1000),
)


def killed(run: Run) -> None:
    """The process is gone, and its locks with it."""
    run.manager = None
    run.disk.locks.clear()


def step(run: Run, action: Action) -> bool:
    """One action; whether it failed. Then what is there is what was there before, or what the action meant."""
    before = run.content
    effect = effect_of(before, action)
    try:
        run.do(action)
    except MagnitudeError:
        killed(run)
        allowed: list[Content] = [before, after(before, effect)]
        found = found_on(run.disk, run.state)
        assert found in allowed
        run.content = found
        run.disk.mark(Mark(True, None))
        return True
    return False


@pytest.mark.parametrize("state", ["sidecar", "model"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.short_bytes or errno.errorcode[fault.errno])
def test_when_any_one_file_operation_fails_nothing_acknowledged_is_lost(state: str, fault: Fault) -> None:
    calls = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all(ALL_KINDS).disk.calls
    failed = set()
    for number in range(calls):
        disk = Disk.with_file(MODEL, MODEL_BYTES)
        disk.fault = Fault(number, fault.errno, fault.short_bytes)
        run = Run(disk, state)
        failures = [step(run, action) for action in ALL_KINDS]
        if any(failures):
            failed.add(disk.fault.happened)
        killed(run)
        assert found_on(disk, state) == run.content
        assert bytes(disk.contents[1][: len(MODEL_BYTES)]) == MODEL_BYTES
    wanted = set() if fault.short_bytes else {"pwritev", "fdatasync"}
    assert wanted <= failed, "the faults did happen, and were told"


def step_on(run: Run, action: Action) -> None:
    """One action; where it fails, the same manager goes on, unless it says that it cannot: after a failed sync."""
    before, effect = run.content, effect_of(run.content, action)
    try:
        run.do(action)
    except MagnitudeError as error:
        if "earlier sync failed" in error.message:
            killed(run)
        found = content_of(run.manager) if run.manager else found_on(run.disk, run.state)
        assert found in (before, after(before, effect))
        run.content = found
        run.disk.mark(Mark(True, effect if found != before else None))


@pytest.mark.parametrize("state", ["sidecar", "model"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.short_bytes or errno.errorcode[fault.errno])
def test_when_any_one_file_operation_fails_the_process_goes_on_and_power_loss_still_loses_nothing(
    state: str, fault: Fault
) -> None:
    calls = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all(ALL_KINDS).disk.calls
    chance = random.Random(5)
    for number in range(calls):
        disk = Disk.with_file(MODEL, MODEL_BYTES)
        disk.fault = Fault(number, fault.errno, fault.short_bytes)
        run = Run(disk, state)
        for action in ALL_KINDS:
            step_on(run, action)
        for _ in range(2):
            check(*state_at_the_end(disk, chance), state)
        killed(run)
        assert found_on(disk, state) == run.content


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_disk_that_is_full_for_a_while_takes_saves_again_afterwards(state: str) -> None:
    disk = Disk.with_file(MODEL, MODEL_BYTES)
    run = Run(disk, state).all(ALL_KINDS[:2])
    assert run.manager
    sizes = {inode: len(content) for inode, content in disk.contents.items()}
    for _ in range(3):
        disk.fault = Fault(disk.calls, errno.ENOSPC)
        with pytest.raises(PreconditionError, match="No space left") as caught:
            run.do(Action("save", "one", b"too much" * 1000))
        assert caught.value.reason == "STORAGE_FULL"
        assert content_of(run.manager) == run.content
    assert {inode: len(content) for inode, content in disk.contents.items()} == sizes, "what was half written is gone"
    run.do(Action("save", "one", b"fits"))
    killed(run)
    assert found_on(disk, state) == run.content


def test_after_a_failed_sync_no_save_is_acknowledged_until_the_file_is_opened_again() -> None:
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), "sidecar").all(ALL_KINDS[:1])
    run.disk.fault = Fault(run.disk.calls + 1, errno.EIO)
    with pytest.raises(MagnitudeError, match="cannot be synced"):
        run.do(Action("save", "one", b"2"))
    for _ in range(2):
        with pytest.raises(PreconditionError, match="an earlier sync failed") as caught:
            run.do(Action("save", "one", b"3"))
        assert caught.value.reason == "STORAGE_FAILED"
    killed(run)
    run.do(Action("save", "two", b"4"))


def test_a_reader_that_meets_a_bad_sector_changes_nothing() -> None:
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), "sidecar").all(ALL_KINDS[:3])
    killed(run)
    before = {inode: bytes(content) for inode, content in run.disk.contents.items()}
    for number in range(10):
        run.disk.fault = Fault(run.disk.calls + number, errno.EIO)
        try:
            run.open()
        except MagnitudeError:
            assert {inode: bytes(content) for inode, content in run.disk.contents.items()} == before
        run.disk.locks.clear()
    assert found_on(run.disk, "sidecar") == run.content


@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_a_read_only_disk_is_read_and_refuses_saves_by_name(state: str) -> None:
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all(ALL_KINDS[:3])
    killed(run)
    run.disk.is_read_only = True
    with pytest.raises(PreconditionError) as caught:
        run.open()
    assert caught.value.reason == "READ_ONLY"
    with StateSnapshotManager(MODEL, options(state), file_system=run.disk, read_only=True) as reader:
        assert content_of(reader) == run.content


def test_longer_runs_survive_a_fault_too() -> None:
    for seed in range(4):
        steps = list(actions(seed, 20))
        calls = Run(Disk.with_file(MODEL, MODEL_BYTES), "sidecar").all(steps).disk.calls
        for number in range(seed, calls, 11):
            disk = Disk.with_file(MODEL, MODEL_BYTES)
            disk.fault = Fault(number, errno.EIO)
            run = Run(disk, "sidecar")
            for action in steps:
                step(run, action)
            killed(run)
            assert found_on(disk, "sidecar") == run.content


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.short_bytes or errno.errorcode[fault.errno])
def test_an_export_that_fails_anywhere_leaves_a_whole_file_or_none(fault: Fault) -> None:
    exported = MODEL.with_name("one.state.gguf")
    blobs = {"agent_state": b"whole" * 3000, "agent/pdf": b"part"}
    made = header("one")
    made.snapshot.version = 7

    def export(disk: Disk) -> bool:
        try:
            write_state_file(exported, made, blobs, disk)
        except MagnitudeError:
            return False
        return True

    sound = Disk.with_file(MODEL, MODEL_BYTES)
    assert export(sound)
    for number in range(sound.calls):
        disk = Disk.with_file(MODEL, MODEL_BYTES)
        disk.fault = Fault(number, fault.errno, fault.short_bytes)
        is_done = export(disk)
        assert is_done or fault.short_bytes is None
        assert exported in disk.names or not is_done
        if exported in disk.names:
            model = exported.with_name("one.gguf")
            with StateSnapshotManager(model, options("sidecar"), file_system=disk, read_only=True) as reader:
                saved = reader.restore("one", 7)
                assert {name: data.tobytes() for name, data in saved.blobs.items()} == blobs
