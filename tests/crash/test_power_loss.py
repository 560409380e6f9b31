"""Every prefix of a run, with torn, lost and reordered sectors of what was not synced: opened, and held to the model.

What was acknowledged is there and equal; what was not is there whole or not at all; no byte of a tensor changes.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.crash.campaign import campaign, check_all, crash_again, states_of
from tests.crash.disk import Disk, Platter
from tests.crash.workload import MODEL, MODEL_BYTES, Action, Run, found_on

STATES = ("sidecar", "model")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_power_loss_leaves_the_acknowledged_is_there_and_nothing_torn_is(state: str, seed: int) -> None:
    assert campaign(state, seed, action_count=25, per_prefix=3) > 200


SAVE, SHORT = Action("save", "one", b"1" * 5000), Action("save", "two", b"2")
RELAXED = Action("relaxed", "one", b"3" * 3000)
DELETE, COMPACT = Action("delete", "one"), Action("compact")
SHORT_LIVES = {
    "an index behind saves that were not synced": (SHORT, RELAXED, COMPACT),
    "a save behind saves that were not synced": (RELAXED, RELAXED, SHORT, RELAXED, SHORT),
    "holes where somebody was deleted": (SAVE, SHORT, DELETE, COMPACT, SHORT, COMPACT),
    "nothing left but the first segment": (SAVE, DELETE, COMPACT, SHORT),
    "holes where versions were too many": (SAVE, SAVE, SAVE, SAVE, SAVE, COMPACT, DELETE, COMPACT, SAVE),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("life", SHORT_LIVES)
def test_a_short_life_survives_power_loss_at_every_moment_in_many_ways(state: str, life: str) -> None:
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all(SHORT_LIVES[life])
    assert check_all(states_of(run.disk, 40, random.Random(life)), state) > 100


@pytest.mark.parametrize("state", STATES)
def test_a_second_loss_of_power_loses_nothing_that_the_first_one_left(state: str) -> None:
    chance = random.Random(7)
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all((SHORT, SAVE, RELAXED, RELAXED, SHORT, DELETE))
    count = 0
    for disk, allowed in states_of(run.disk, 4, chance):
        if chance.random() < 0.3:
            count += crash_again(disk, allowed, state, (RELAXED, SHORT), chance)
    assert count > 100


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_states_hold_to_the_model() -> None:
    count = 0
    for seed in itertools.count(100):
        for state in STATES:
            count += campaign(state, seed, action_count=40, per_prefix=12)
        if count >= 100_000:
            break
    print(f"{count:,} states, seeds 100…{seed}")


@pytest.mark.parametrize("state", STATES)
def test_a_save_whose_sync_is_left_out_is_caught(state: str) -> None:
    """The deliberate fault: what the campaign is for."""
    disk = Disk.with_file(MODEL, MODEL_BYTES)
    run = Run(disk, state)
    run.do(Action("save", "one", b"first"))
    disk.skips_sync = lambda count: True
    run.do(Action("save", "one", b"second"))
    chance = random.Random(3)
    with pytest.raises(AssertionError):
        check_all(states_of(disk, 20, chance), state)


def test_a_folder_that_is_not_synced_after_compaction_loses_only_the_new_name() -> None:
    disk = Disk.with_file(MODEL, MODEL_BYTES)
    run = Run(disk, "sidecar").all([Action("save", "one", b"1"), Action("save", "one", b"2"), Action("compact")])
    renames = [place for place, each in enumerate(disk.operations) if each.kind == "rename"]
    platter = Platter.before(MODEL, MODEL_BYTES)
    for operation in disk.operations[: renames[-1] + 1]:
        platter.follow(operation)
    found = [found_on(platter.after_power_loss(random.Random(seed)), "sidecar") for seed in range(8)]
    assert all(each == run.content for each in found)


@pytest.mark.parametrize("state", STATES)
def test_a_repair_that_loses_power_is_begun_again(state: str) -> None:
    """A torn segment before a whole one: until it is made unreadable, nothing may say that it was synced."""
    others = [
        Action("save", f"agent/with-a-long-name/{number}", b"x") for number in range(8)
    ]  # an index of two sectors
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all((*others, RELAXED, Action("relaxed", "two", b"4")))
    left = {id: versions for id, versions in run.content.items() if id != "one"}
    inode = max(run.disk.contents)
    torn = run.disk.contents[inode]
    torn[torn.index(b"3" * 3000)] ^= 1
    chance = random.Random(11)
    for _ in range(60):
        disk = Disk({number: bytearray(content) for number, content in run.disk.contents.items()}, dict(run.disk.names))
        assert crash_again(disk, [left], state, (), chance) > 2
