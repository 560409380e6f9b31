"""What a compaction of the state file costs a running stream: gaps between tokens with it beside those without.

    python -m tests.bench.bench_gaps [--rounds 4] [--tokens 900] [--folder DIR]

Prints Markdown. `magnitude serve` with its default options generates one stream of SmolLM2 at a time; 192 MiB of saved
states stay alive in its sidecar. In each round the same stream runs twice: without a compaction, and after sessions
were deleted, so that more than 30% is dead and the server compacts by itself. A gap counts as compacting while the new
file is there beside the old one. The p99 is that of all rounds together.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from magnitude.client import Client
from magnitude.sessions import ExportedState
from magnitude_service.config import cache_folder
from tests.bench.turns import Taken
from tests.support.serving import Served, eventually, serving

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Write a long story about a lighthouse keeper and the sea."
MIB = 1 << 20
STATE_BYTES = 12 * MIB
KEPT, DELETED = 16, 8
"""States that stay, and those that are deleted in each round: a third of the file."""
P99_RATIO_MAX = 1.5


class Upkept:
    """A server with a state file of which a third can be made dead at once, and its stream."""

    def __init__(self, client: Client, folder: Path, tokens: int) -> None:
        self._client, self._tokens = client, tokens
        self._new_file = folder / f"{Path(MODEL).stem}.state.gguf.new"
        client.session("first").infer(PROMPT, max_tokens=1)
        client.session("first").save(with_pages=False)
        self._header = client.sessions.export("first", with_pages=False).header

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction runs: it writes a new file, which takes the old one's place at the end."""
        return self._new_file.exists()

    def save(self, name: str, count: int) -> None:
        """Saves so many states."""
        for number in range(count):
            state = ExportedState(self._header, os.urandom(STATE_BYTES))
            self._client.sessions.import_state(state, f"{name}/{number}")

    def delete(self, name: str, count: int) -> None:
        """Deletes them, and waits until the server compacts."""
        for number in range(count):
            self._client.sessions.delete(f"{name}/{number}")
        eventually(lambda: self.is_compacting)

    def gaps(self, counts: Callable[[], bool] = lambda: True) -> Taken:
        """Seconds between the tokens of one stream, of those gaps at whose end `counts` holds."""
        found, last = Taken(), 0.0
        with self._client.stream(PROMPT, max_tokens=self._tokens, ignore_eos=True, temperature=0.0) as stream:
            for event in stream:
                now = time.perf_counter()
                if event.HasField("delta") and last and counts():
                    found.append(now - last)
                last = now if event.HasField("delta") else last
        return found


def measure(upkept: Upkept, rounds: int) -> tuple[Taken, Taken, Taken]:
    """Gaps without a compaction, gaps with one, and what each compaction took."""
    quiet, busy, seconds = Taken(), Taken(), Taken()
    upkept.save("kept", KEPT)
    upkept.gaps()
    for _ in range(rounds):
        upkept.save("deleted", DELETED)
        without = upkept.gaps()
        upkept.delete("deleted", DELETED)
        begin = time.perf_counter()
        compacting = upkept.gaps(lambda: upkept.is_compacting)
        eventually(lambda: not upkept.is_compacting)
        seconds.append(time.perf_counter() - begin)
        quiet += without[: len(compacting)]  # the same places in the same text
        busy += compacting
    return quiet, busy, seconds


def run(served: Served, folder: Path, rounds: int, tokens: int) -> str:
    """The row of the table."""
    with Client(served.address) as client:
        quiet, busy, seconds = measure(Upkept(client, folder, tokens), rounds)
    cells = [f"{each.median * 1e3:.2f} | {each.p99 * 1e3:.2f} | {max(each) * 1e3:.0f}" for each in (quiet, busy)]
    return (
        f"| {' | '.join(cells)} | {busy.p99 / quiet.p99:.2f} | ≤ {P99_RATIO_MAX} | {len(quiet):,}, {len(busy):,} | "
        f"{seconds.median:.1f} |"
    )


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=900, help="Of each stream.")
    parser.add_argument("--folder", help="Where the state file lies; removed afterwards.")
    given = parser.parse_args()
    columns = ["gaps: median, ms", "p99", "worst", "compacting: median, ms", "p99", "worst", "ratio of p99", "bar"]
    columns += ["gaps without, with", "compaction, s"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    model = cache_folder("") / "models" / MODEL
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        flags = ("--state-dir", folder, "--threads", str(os.cpu_count() or 1))
        with serving(model, *flags) as served:
            print(run(served, Path(folder), given.rounds, given.tokens), flush=True)


if __name__ == "__main__":
    main()
