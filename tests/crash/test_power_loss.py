"""Every prefix of a run, with torn, lost and reordered sectors of what was not synced: opened, and held to the model.

What was acknowledged is there and equal; what was not is there whole or not at all; no byte of a tensor changes.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.crash.campaign import campaign, check_all, states_of
from tests.crash.disk import Disk, Platter
from tests.crash.workload import MODEL, MODEL_BYTES, Action, Run, found_on

STATES = ("sidecar", "model")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_power_loss_leaves_the_acknowledged_is_there_and_nothing_torn_is(state: str, seed: int) -> None:
    assert campaign(state, seed, action_count=25, per_prefix=3) > 200


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
