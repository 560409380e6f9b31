"""The state store beside Redis, in the same run and interleaved: states of 64 KiB, 1 MiB and 12 MiB.

    python -m tests.bench.bench_state [--only reads relaxed forced grpc] [--kib 64 …] [--folder DIR] [--seconds 6]

Redis is Debian's redis-server on a Unix socket, asked by redis-py with hiredis. Prints Markdown: MB/s by the median
call with the 99th percentile in ms; "ratio" is ours ÷ redis-py by the medians, "p99" by the 99th percentiles, "bar"
what the ratio is held to. All files lie in `--folder`.

- reads: a version restored in this process, every byte checked, beside GET. "bare" is GET by a client that only
  receives.
- relaxed: saves with durability RELAXED, synced once a second, beside SET with appendfsync everysec, and beside a plain
  append to a file that is synced as often.
- forced: saves beside SET with appendfsync always, and beside a plain append with fdatasync.
- grpc: a version through `magnitude serve` and our client, beside GET: by Get, or where it is too large for that by
  ExportState, checked as the client does by default; and beside grpcio's own cost for as many bytes (bare_grpc.py).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from magnitude.client import Client
from magnitude.sessions import ExportedState
from magnitude.v1 import snapshot_pb2
from magnitude_service.snapshot import Durability, SnapshotOptions, StateSnapshotManager, UpkeepThread
from tests.bench.bare_grpc import bare_server
from tests.bench.redis_server import BareClient, client, redis_server
from tests.bench.turns import in_turns
from tests.support import gguf_bytes
from tests.support.serving import serving
from tests.support.tiny_models import write_tiny_model

KIB, MIB = 1 << 10, 1 << 20
SIZES = {64 * KIB: 64, 1 * MIB: 16, 12 * MIB: 4}
"""Bytes of a state, and the sessions that take turns."""

READ_RATIO_MIN, GRPC_RATIO_MIN, RELAXED_RATIO_MIN, FORCED_RATIO_MIN = 10, 1, 2, 1

GET_BYTES_MAX = 4 * MIB
"""What Get returns at most; more comes by ExportState, in chunks whose CRC, place and length the client checks."""

Calls = Mapping[str, Callable[[int], object]]


def header(session_id: str) -> snapshot_pb2.StateHeader:
    """A session of one token."""
    runs = [snapshot_pb2.TokenRun(kind=snapshot_pb2.TOKEN_KIND_PROMPT, count=1)]
    sampler = snapshot_pb2.SamplerState(draw=1)
    session = snapshot_pb2.SessionState(state_version=1, token_ids=[1], runs=runs, sampler=sampler)
    return snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id=session_id), session=session)


def new_manager(folder: Path, name: str) -> StateSnapshotManager:
    """A manager of a new sidecar."""
    return StateSnapshotManager(gguf_bytes.write_model(folder / f"{name}.gguf"), SnapshotOptions(state_versions_kept=2))


def table(what: str, bar: float, seconds: float, calls_of: Callable[[int, list[bytes]], Calls]) -> None:
    """Measures what `calls_of` makes of a size and its states, for each size. Ours comes first, redis-py second."""
    names: list[str] = []
    for size, count in SIZES.items():
        taken = in_turns(seconds, count, calls_of(size, [os.urandom(size) for _ in range(count)]))
        if not names:
            names = list(taken)
            others = [f"ours ÷ {name}" for name in names[2:]]
            columns = ["state", *names, *others, "ratio", "p99", "bar"]
            print(f"\n{what}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        ours, redis, *rest = taken.values()
        cells = [f"{size // KIB:,} KiB", *(each.rate(size) for each in taken.values())]
        cells += [ratio(each.median, ours.median) for each in rest]
        cells += [ratio(redis.median, ours.median), ratio(redis.p99, ours.p99), f"≥ {bar}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def ratio(theirs: float, ours: float) -> str:
    """How many times faster ours is."""
    return f"{theirs / ours:.2f}"


def fill(manager: StateSnapshotManager, redis: object, states: list[bytes]) -> None:
    """The same states on both sides, and the proof that both give them back."""
    for number, data in enumerate(states):
        manager.save(header(f"{len(data)}/{number}"), agent_state=data, durability=Durability.RELAXED)
        redis.set(f"{len(data)}/{number}", data)  # type: ignore[attr-defined]
        assert manager.restore(f"{len(data)}/{number}").agent_state.tobytes() == data
        assert redis.get(f"{len(data)}/{number}") == data  # type: ignore[attr-defined]


def reads(folder: Path, seconds: float) -> None:
    """In this process."""
    with redis_server(folder / "redis") as path, new_manager(folder, "reads") as manager:
        redis, bare = client(path), BareClient(path, max(SIZES))

        def calls_of(size: int, states: list[bytes]) -> Calls:
            fill(manager, redis, states)
            return {
                "ours": lambda number: manager.restore(f"{size}/{number}"),
                "redis-py": lambda number: redis.get(f"{size}/{number}"),
                "bare": lambda number: bare.get(f"{size}/{number}", size),
            }

        table("reads in this process", READ_RATIO_MIN, seconds, calls_of)


def writes(folder: Path, seconds: float, durability: Durability) -> None:
    """RELAXED beside everysec, or forced beside always; and beside what the file system can do."""
    is_forced = durability is Durability.DURABLE
    appendfsync, bar = ("always", FORCED_RATIO_MIN) if is_forced else ("everysec", RELAXED_RATIO_MIN)
    options = ("--appendonly", "yes", "--appendfsync", appendfsync, "--auto-aof-rewrite-percentage", "0")
    with redis_server(folder / "redis", *options) as path, new_manager(folder, appendfsync) as manager:
        redis = client(path)
        upkeep = UpkeepThread(manager.maintain, manager.options.state_sync_interval_seconds)
        upkeep.start()
        with appending(folder / "appended", is_forced) as append:

            def calls_of(size: int, states: list[bytes]) -> Calls:
                return {
                    "ours": lambda number: manager.save(
                        header(f"{size}/{number}"), agent_state=states[number], durability=durability
                    ),
                    "redis-py": lambda number: redis.set(f"{size}/{number}", states[number]),
                    "append": lambda number: append(states[number]),
                }

            table(f"writes, {durability.value}, beside appendfsync {appendfsync}", bar, seconds, calls_of)
        upkeep.stop()


@contextmanager
def appending(path: Path, is_forced: bool) -> Iterator[Callable[[bytes], None]]:
    """Appends to a file; syncs it each time, or once a second."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(data: bytes) -> None:
        os.write(descriptor, data)
        if is_forced:
            os.fdatasync(descriptor)

    thread = UpkeepThread(lambda: os.fdatasync(descriptor), 1.0)
    thread.start()
    try:
        yield append
    finally:
        thread.stop()
        os.close(descriptor)


def grpc(folder: Path, seconds: float) -> None:
    """Through a server."""
    with (
        redis_server(folder / "redis") as path,
        state_server(folder) as remote,
        bare_server(list(SIZES), GET_BYTES_MAX) as bare,
    ):
        redis = client(path)

        def calls_of(size: int, states: list[bytes]) -> Calls:
            def get(number: int) -> bytes:
                if size > GET_BYTES_MAX:
                    return remote.sessions.export(f"{size}/{number}").agent_state
                return remote.sessions.get(f"{size}/{number}", return_agent_state=True).agent_state

            for number, data in enumerate(states):
                remote.sessions.import_state(ExportedState(header(f"{size}/{number}"), data))
                redis.set(f"{size}/{number}", data)
                assert get(number) == data
            return {
                "ours": get,
                "redis-py": lambda number: redis.get(f"{size}/{number}"),
                "bare grpcio": lambda number: bare(size),
            }

        table("reads through gRPC", GRPC_RATIO_MIN, seconds, calls_of)


@contextmanager
def state_server(folder: Path) -> Iterator[Client]:
    """`magnitude serve` of a tiny model; no token is computed here."""
    model = write_tiny_model(folder / "served.gguf", tensor_type="Q8_0")
    with serving(model, "--executor", "reference", "--log-level", "warning") as served, Client(served.address) as found:
        yield found


def main() -> None:
    """Measures what was asked for."""
    measures = {
        "reads": reads,
        "relaxed": lambda folder, seconds: writes(folder, seconds, Durability.RELAXED),
        "forced": lambda folder, seconds: writes(folder, seconds, Durability.DURABLE),
        "grpc": grpc,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--folder", help="Where the files lie; removed afterwards.")
    parser.add_argument("--seconds", type=float, default=6.0, help="Of each size.")
    parser.add_argument("--kib", nargs="+", type=int, choices=[size // KIB for size in SIZES], help="Only these sizes.")
    given = parser.parse_args()
    for size in [each for each in SIZES if given.kib and each // KIB not in given.kib]:
        del SIZES[size]
    for name in given.only:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measures[name](Path(folder), given.seconds)


if __name__ == "__main__":
    main()
