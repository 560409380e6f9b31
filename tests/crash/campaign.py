"""The campaign: every state in which a crash may leave the disk of a recorded run, opened and held to the model."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from magnitude_service.errors import NotFoundError
from magnitude_service.snapshot import StateSnapshotManager
from tests.crash.disk import Disk, Platter
from tests.crash.workload import (
    MODEL,
    MODEL_BYTES,
    Action,
    Content,
    Effect,
    Mark,
    Run,
    actions,
    after,
    content_of,
    found_on,
    options,
    possible,
)


class Expected:
    """What must be there, following the marks."""

    def __init__(self) -> None:
        self.certain: Content = {}
        self.ended: list[Effect] = []  # acknowledged, but with durability RELAXED
        self.begun: list[Effect] = []

    def follow(self, mark: Mark) -> None:
        """The next mark."""
        effects = [mark.effect] if mark.effect else []
        if not mark.is_end:
            self.begun = effects
            return
        self.begun = []
        self.ended += effects
        if mark.is_durable:
            for effect in self.ended:
                self.certain = after(self.certain, effect)
            self.ended = []

    def after_power_loss(self) -> list[Content]:
        """Saves with durability RELAXED may be gone."""
        return possible(self.certain, [*self.ended, *self.begun])

    def after_kill(self) -> list[Content]:
        """They may not."""
        content = self.certain
        for effect in self.ended:
            content = after(content, effect)
        return possible(content, self.begun)


def states_of(disk: Disk, per_prefix: int, chance: random.Random) -> Iterator[tuple[Disk, list[Content]]]:
    """Disks as crashes may leave them after each operation, and each return, of a run; and what may be on them."""
    platter, expected = Platter.before(MODEL, MODEL_BYTES), Expected()
    for operation in disk.operations:
        if operation.kind == "mark":
            assert isinstance(operation.mark, Mark)
            expected.follow(operation.mark)
        else:
            platter.follow(operation)
        yield platter.after_kill(operation, chance), expected.after_kill()
        for _ in range(per_prefix):
            yield platter.after_power_loss(chance), expected.after_power_loss()


def state_at_the_end(disk: Disk, chance: random.Random) -> tuple[Disk, list[Content]]:
    """The last of these, after a loss of power."""
    platter, expected = Platter.before(MODEL, MODEL_BYTES), Expected()
    for operation in disk.operations:
        if operation.kind == "mark":
            assert isinstance(operation.mark, Mark)
            expected.follow(operation.mark)
        else:
            platter.follow(operation)
    return platter.after_power_loss(chance), expected.after_power_loss()


def check(disk: Disk, allowed: list[Content], state: str) -> None:
    """Opens a disk as a reader, and then as a writer."""
    try:
        with StateSnapshotManager(MODEL, options(state), file_system=disk, read_only=True) as reader:
            read = content_of(reader)
    except NotFoundError:
        read = {}
    assert read in allowed
    found = found_on(disk, state)
    assert found == read
    assert bytes(disk.contents[disk.names[MODEL]][: len(MODEL_BYTES)]) == MODEL_BYTES


def check_all(states: Iterable[tuple[Disk, list[Content]]], state: str) -> int:
    """Checks them all; returns how many they were."""
    count = 0
    for count, (disk, allowed) in enumerate(states, 1):  # noqa: B007
        check(disk, allowed, state)
    return count


def campaign(state: str, seed: int, action_count: int, per_prefix: int) -> int:
    """Checks all states of one run; returns how many they were."""
    run = Run(Disk.with_file(MODEL, MODEL_BYTES), state).all(actions(seed, action_count))
    return check_all(states_of(run.disk, per_prefix, random.Random(seed)), state)


def crash_again(disk: Disk, allowed: list[Content], state: str, steps: Iterable[Action], chance: random.Random) -> int:
    """After a loss of power the next start repairs, goes on, and loses power too, at every moment; returns how many.

    What the repaired file said is certain then, whatever had been uncertain before.
    """
    platter = Platter({inode: bytearray(content) for inode, content in disk.contents.items()}, dict(disk.names))
    expected = Expected()
    run = Run(disk, state)
    run.manager = run.open()
    run.content = expected.certain = content_of(run.manager)
    assert run.content in allowed
    opened = len(disk.operations)
    run.all(steps)
    count = 0
    for place, operation in enumerate(disk.operations):
        if operation.kind == "mark":
            assert isinstance(operation.mark, Mark)
            expected.follow(operation.mark)
        else:
            platter.follow(operation)
        wanted = allowed if place < opened else expected.after_power_loss()
        check(platter.after_power_loss(chance), wanted, state)
        count += 1
    return count
