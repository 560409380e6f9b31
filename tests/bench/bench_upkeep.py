"""What the state store's upkeep costs: the time to open, and saves while a compaction runs beside those without.

    python -m tests.bench.bench_upkeep [--only opening durable relaxed] [--folder DIR] [--rounds 8]

Prints Markdown. opening: a tail of 10,000 sessions, with its index, and with a damaged one: then all headers are read.
compaction: saves of 64 KiB, alternately without a compaction and while one runs, which copies 64 MiB in states of 1 MiB
at the default rate and gives the old file back. Half of the time without is before it, half behind it; the p99 is that
of all rounds together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from magnitude_service.snapshot import Durability, SnapshotOptions, StateSnapshotManager
from tests.bench.bench_state import KIB, MIB, header
from tests.bench.turns import Taken
from tests.support import gguf_bytes

SESSIONS = 10_000
OPENING_MS_MAX = 50
LARGE_STATES = 32
SAVED_SESSIONS = 8
QUIET_SECONDS = 3.0
PAUSE_SECONDS = 0.001
P99_RATIO_MAX = 1.5


def opening(folder: Path) -> None:
    """A tail of 10,000 sessions."""
    model = gguf_bytes.write_model(folder / "opened.gguf")
    with StateSnapshotManager(model) as manager:
        for number in range(SESSIONS):
            manager.save(header(f"s{number}"), agent_state=b"x", durability=Durability.RELAXED)
    print(f"\n| opening {SESSIONS:,} sessions | least, ms | median, ms | bar, ms |\n|---|---|---|---|")
    print(f"| with its index | {opened(model)} | < {OPENING_MS_MAX} |", flush=True)
    path = folder / "opened.state.gguf"
    os.truncate(path, path.stat().st_size - 1)
    print(f"| with a damaged index | {opened(model)} | |", flush=True)


def opened(model: Path) -> str:
    """The least and the median time of nine, for a reader."""
    taken = Taken()
    for _ in range(9):
        begin = time.perf_counter()
        with StateSnapshotManager(model, read_only=True) as manager:
            taken.append(time.perf_counter() - begin)
            assert manager.get(f"s{SESSIONS - 1}").version == 1
    return f"{min(taken) * 1e3:.1f} | {taken.median * 1e3:.1f}"


def compaction(folder: Path, durability: Durability, rounds: int) -> None:
    """Saves while a compaction runs."""
    model = gguf_bytes.write_model(folder / f"{durability.value}.gguf")
    options = SnapshotOptions(state_versions_kept=2, state_auto_compact=False)
    large, small = os.urandom(MIB), os.urandom(64 * KIB)
    quiet, busy, seconds = Taken(), Taken(), []
    with StateSnapshotManager(model, options) as manager:

        def without() -> None:
            end = time.perf_counter() + QUIET_SECONDS
            quiet.extend(saves(lambda: time.perf_counter() >= end))

        def saves(is_over: Callable[[], bool]) -> Taken:
            taken, number = Taken(), 0
            while not is_over():
                begin = time.perf_counter()
                manager.save(header(f"s{number % SAVED_SESSIONS}"), agent_state=small, durability=durability)
                taken.append(time.perf_counter() - begin)
                number += 1
                time.sleep(PAUSE_SECONDS)
            return taken

        for _ in range(rounds):
            for number in range(LARGE_STATES * 2):
                manager.save(header(f"l{number % LARGE_STATES}"), agent_state=large, durability=Durability.RELAXED)
            manager.save(header("synced"), agent_state=b"")  # nothing of the filling is left to be written
            without()
            thread = threading.Thread(target=manager.compact)
            begin = time.perf_counter()
            thread.start()
            busy += saves(lambda: not thread.is_alive())  # noqa: B023
            seconds.append(time.perf_counter() - begin)
            without()
    cells = [f"{each.median * 1e3:.2f} | {each.p99 * 1e3:.2f} | {max(each) * 1e3:.0f}" for each in (quiet, busy)]
    print(
        f"| {durability.value} | {' | '.join(cells)} | {busy.p99 / quiet.p99:.2f} | ≤ {P99_RATIO_MAX} | "
        f"{len(quiet):,}, {len(busy):,} | {statistics.median(seconds):.1f} |",
        flush=True,
    )


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", help="Where the files lie; removed afterwards.")
    parser.add_argument("--rounds", type=int, default=8)
    parts = ["opening", *(each.value for each in Durability)]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if "opening" in given.only:
            opening(Path(folder))
        durabilities = [each for each in Durability if each.value in given.only]
        if not durabilities:
            return
        columns = ["saves", "median, ms", "p99", "worst", "compacting: median, ms", "p99", "worst"]
        columns += ["ratio of p99", "bar", "saves without, with", "compaction, s"]
        print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
        for durability in durabilities:
            compaction(Path(folder), durability, given.rounds)


if __name__ == "__main__":
    main()
