"""A run of saves, deletions and compactions, and what must be there after each: the model that crashes are held to."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import MagnitudeError
from magnitude_service.snapshot import Durability, SnapshotOptions, StateSnapshotManager
from tests.crash.disk import Disk
from tests.support import gguf_bytes

MODEL = Path("/disk/M.gguf")
MODEL_BYTES = gguf_bytes.small_model().build()
VERSIONS_KEPT = 3
SESSIONS = ("agent/one", "agent/two", "three")

Content = Mapping[str, Mapping[int, bytes]]
"""Of each session, each version's bytes; under NEXT, the number that its next version gets."""

NEXT = 0


def options(state: str) -> SnapshotOptions:
    """What all runs use: holes are punched at once."""
    return SnapshotOptions(
        state=state, state_versions_kept=VERSIONS_KEPT, state_punch_after_seconds=0, state_auto_compact=False
    )


class Action(NamedTuple):
    """One call."""

    kind: str  # save, relaxed, delete, compact, reopen
    session_id: str = ""
    data: bytes = b""
    versions: tuple[int, ...] = ()


def actions(seed: int, count: int) -> Iterator[Action]:
    """A plausible life: saves mostly, of a few bytes or some sectors; now and then something else."""
    chance = random.Random(seed)
    for _ in range(count):
        session = chance.choice(SESSIONS)
        data = chance.randbytes(chance.choice((1, 700, 700, 5_000, 70_000)))
        kind = chance.choices(("save", "relaxed", "delete", "compact", "reopen"), (12, 2, 2, 2, 2))[0]
        yield Action(kind, session, data)


class Effect(NamedTuple):
    """What an action does to a session: adds a version, and takes away those below the floor."""

    session_id: str
    version: int
    data: bytes
    floor: int


def effect_of(content: Content, action: Action) -> Effect | None:
    """None: it changes nothing that a client sees."""
    known = content.get(action.session_id, {NEXT: b"1"})
    versions = known.keys() - {NEXT}
    if action.kind in ("save", "relaxed"):
        version = int(known[NEXT])
        floor = sorted([*versions, version])[-VERSIONS_KEPT:][0]
        return Effect(action.session_id, version, action.data, floor)
    if action.kind == "delete" and versions:
        return Effect(action.session_id, 0, b"", max(versions) + 1)
    return None


def after(content: Content, effect: Effect | None) -> Content:
    """What is there when the effect has come about."""
    if effect is None:
        return content
    known = content.get(effect.session_id, {})
    kept = {version: data for version, data in known.items() if version >= effect.floor or version == NEXT}
    if effect.version:
        kept |= {effect.version: effect.data, NEXT: b"%d" % (effect.version + 1)}
    return {**content, effect.session_id: kept}


def possible(certain: Content, effects: list[Effect]) -> list[Content]:
    """All that may be there when any of the effects came about, in their order."""
    found = [certain]
    for effect in effects:
        found += [after(each, effect) for each in found]
    return found


class Mark(NamedTuple):
    """In the disk's operations: an action begins, or has ended. `durable`: all before it is certain now."""

    is_end: bool
    effect: Effect | None
    is_durable: bool = False


class Run:
    """Carries out actions on a disk, and knows what must be there."""

    def __init__(self, disk: Disk, state: str) -> None:
        self.disk, self.state = disk, state
        self.content: Content = {}
        self.errors: list[MagnitudeError] = []
        self.clock = 1_700_000_000 * 10**9
        self.manager: StateSnapshotManager | None = None

    def tick(self) -> int:
        """Time goes on with every look at the clock."""
        self.clock += 1_000_000
        return self.clock

    def open(self) -> StateSnapshotManager:
        """A manager of the disk's file."""
        return StateSnapshotManager(MODEL, options(self.state), file_system=self.disk, clock=self.tick)

    def all(self, steps: Iterable[Action]) -> Run:
        """Does all actions."""
        for action in steps:
            self.do(action)
        return self

    def do(self, action: Action) -> None:
        """One action. Nothing but a MagnitudeError may come out of the store."""
        effect = effect_of(self.content, action)
        self.disk.mark(Mark(False, effect))
        self._call(action)
        self.content = after(self.content, effect)
        is_durable = action.kind in ("save", "compact", "reopen") or (action.kind == "delete" and effect is not None)
        self.disk.mark(Mark(True, effect, is_durable))

    def _call(self, action: Action) -> None:
        self.manager = self.manager or self.open()
        if action.kind in ("save", "relaxed"):
            durability = Durability.DURABLE if action.kind == "save" else Durability.RELAXED
            self.manager.save(header(action.session_id), agent_state=action.data, durability=durability)
        elif action.kind == "delete":
            if len(self.content.get(action.session_id, ())) > 1:
                self.manager.delete(action.session_id)
        elif action.kind == "compact":
            self.manager.compact()
        else:
            manager, self.manager = self.manager, None
            manager.close()


def header(session_id: str) -> snapshot_pb2.StateHeader:
    """A small session."""
    session = snapshot_pb2.SessionState(state_version=1, token_ids=[1, 2, 3], cache_salt=session_id)
    return snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id=session_id), session=session)


def content_of(manager: StateSnapshotManager) -> Content:
    """All that a manager takes for live, every byte of it read: what cannot be read is an error."""
    table = manager._store.table
    found = {id: {NEXT: b"%d" % table.next_version(id)} for id in [*table.sessions, *table.given]}
    for entry in list(table.entries()):
        saved = manager.restore(entry.session_id, entry.version)
        assert list(saved.session.token_ids) == [1, 2, 3]
        assert saved.session.cache_salt == saved.snapshot.session_id == entry.session_id
        found[entry.session_id][entry.version] = saved.agent_state.tobytes()
    return found


def found_on(disk: Disk, state: str) -> Content:
    """What the next start finds, which repairs what it must; and the one after that finds the same."""
    with Run(disk, state).open() as manager:
        found = content_of(manager)
    with Run(disk, state).open() as manager:
        assert manager.findings == (), "a repaired file has nothing left to complain about"
        assert content_of(manager) == found
    return found
