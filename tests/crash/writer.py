"""A process that saves without end, while its file is compacted again and again beside it; tells of each save that has
returned. To be killed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from pathlib import Path

from magnitude_service.errors import UnavailableError
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager, UpkeepThread
from tests.crash.workload import header

SESSIONS_MAX = 5


def content(session_id: str, version: int) -> bytes:
    """What a version holds: some bytes, or some hundred thousand, that follow from its name."""
    seed = hashlib.sha256(f"{session_id} {version}".encode()).digest()
    return seed * (1 + seed[0] * seed[1] // 4)


def main(model: str, state: str, seed: str) -> None:
    """Writes a line before and after each save. The upkeep compacts in the background, often so slowly that saves come
    meanwhile; now and then this thread asks for it too."""
    chance = random.Random(int(seed))
    options = SnapshotOptions(
        state=state,
        state_versions_kept=3,
        state_punch_after_seconds=0,
        state_compact_dead_ratio=0.2,
        state_compact_min_bytes=0,
        state_compact_bytes_per_second=chance.choice((16, 16, 256)) << 20,
    )
    with StateSnapshotManager(Path(model), options) as manager:
        UpkeepThread(manager.maintain, interval_seconds=0.01).start()
        print("open", flush=True)
        while True:
            session_id = f"s{chance.randrange(SESSIONS_MAX)}"
            versions = manager.list(session_id).snapshots
            version = versions[-1].version + 1 if versions else 1
            print("begin", session_id, version, flush=True)
            saved = manager.save(header(session_id), agent_state=content(session_id, version))
            print("end", session_id, saved.version, flush=True)
            if chance.random() < 0.1:
                with contextlib.suppress(UnavailableError):  # one runs already
                    manager.compact()


if __name__ == "__main__":
    main(*sys.argv[1:])
