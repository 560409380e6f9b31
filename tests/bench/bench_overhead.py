"""What serving costs beside computing: the server's processor time outside the kernel pool, while Go clients stream.

    python -m tests.bench.bench_overhead [--model smollm2|qwen] [--streams 16] [--repetitions 3]

The server runs in a process of its own, the load (`clients/go/load`) in another, which does not count. Of the server
every thread's clock is read before and after. The kernel pool is its worker threads and the engine thread within native
steps; all the rest is overhead: the engine thread's planning and scheduling, event loop, gRPC, text workers. Prints
Markdown: the share of the overhead, the bar, and what each thread took.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from magnitude.client import Client
from magnitude_service.config import cache_folder
from tests.bench.counted_server import POOL_NAME, Counts
from tests.bench.turns import repetitions

GO_CLIENT = Path(__file__).parents[2] / "clients" / "go"
THREADS = 2
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
HASHED_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """A model, requests of each stream so that a run takes about 15 s on two cores, and the bar."""

    file: str
    requests: int
    tokens: int
    share_max: float


LOADS = {
    "smollm2": Load("SmolLM2-135M-Instruct.Q4_1.gguf", 5, 128, 0.10),
    "qwen": Load("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 2, 32, 0.03),
}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    process_id: int
    address: str
    counts: Path


@dataclass(frozen=True, slots=True)
class Clocks:
    """Processor seconds since the server's start."""

    total: float
    threads: dict[int, tuple[str, float]]
    """Thread → its name and time, of those that live."""
    counts: Counts

    @classmethod
    def read(cls, server: Server) -> Clocks:
        """Now."""
        process = Path("/proc") / str(server.process_id)
        threads = {}
        for task in (process / "task").iterdir():
            try:
                threads[int(task.name)] = read_stat(task)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile; the process' own clock has its time
        return cls(read_stat(process)[1], threads, Counts.read(server.counts))


def read_stat(folder: Path) -> tuple[str, float]:
    """The name and the user and system time, in seconds, of a process or a thread."""
    head, _, tail = (folder / "stat").read_text().rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds of the server during one run."""

    total: float
    pool_workers: float
    native_steps: float
    overhead: dict[str, float]
    """By thread. Threads that ended during the run are one entry."""
    steps: int

    @property
    def share(self) -> float:
        """Overhead ÷ total."""
        return (self.total - self.pool_workers - self.native_steps) / self.total

    @classmethod
    def between(cls, begin: Clocks, end: Clocks, process_id: int) -> Usage:
        """What lies between two readings."""
        engine, workers = end.counts.engine_thread, 0.0
        native = (end.counts.native_ns - begin.counts.native_ns) / 1e9
        overhead: dict[str, float] = defaultdict(float)
        for thread, (name, seconds) in end.threads.items():
            spent = seconds - begin.threads.get(thread, ("", 0.0))[1]
            if name == POOL_NAME:
                workers += spent
            elif thread == engine:
                overhead["engine thread outside native steps"] += spent - native
            else:
                overhead["event loop" if thread == process_id else name] += spent
        total = end.total - begin.total
        overhead["threads that ended"] = total - workers - native - sum(overhead.values())
        return cls(total, workers, native, overhead, end.counts.steps - begin.counts.steps)


@contextmanager
def counted_server(model: Path) -> Iterator[Server]:
    """A server that has hashed its model, and thus has nothing to do."""
    with tempfile.NamedTemporaryFile() as counts:
        command = [sys.executable, "-m", "tests.bench.counted_server", counts.name, "serve", "--model", str(model)]
        command += ["--port", "0", "--threads", str(THREADS)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split()[2].rstrip(":")
            end = time.monotonic() + HASHED_SECONDS_MAX
            with Client(address) as client:
                while not client.infer("Hello", max_tokens=4).content_sha256:
                    assert time.monotonic() < end, f"{model} is not hashed after {HASHED_SECONDS_MAX} s"
                    time.sleep(0.5)
            yield Server(process.pid, address, Path(counts.name))
        finally:
            process.terminate()
            process.wait()


def measure(server: Server, program: Path, load: Load, streams: int) -> tuple[Usage, dict[str, float]]:
    """One run: the server's usage, and what the clients had."""
    command = [str(program), "-address", server.address, "-streams", str(streams)]
    command += ["-requests", str(load.requests), "-tokens", str(load.tokens)]
    begin = Clocks.read(server)
    report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    usage = Usage.between(begin, Clocks.read(server), server.process_id)
    workers = sum(name == POOL_NAME for name, _ in begin.threads.values())
    assert workers == THREADS - 1, f"{workers} threads are called {POOL_NAME}"
    return usage, json.loads(report)


def print_threads(name: str, usages: list[Usage]) -> None:
    """Seconds by thread, medians of all runs."""
    rows = {
        "kernel pool: worker threads": [usage.pool_workers for usage in usages],
        "kernel pool: engine thread within native steps": [usage.native_steps for usage in usages],
    }
    for thread in sorted(set().union(*(usage.overhead for usage in usages))):
        rows[thread] = [usage.overhead.get(thread, 0.0) for usage in usages]
    print(f"\n| {name}, thread | processor time, s | share |\n|---|---|---|")
    total = statistics.median(usage.total for usage in usages)
    for thread, seconds in rows.items():
        share = statistics.median(found / usage.total for found, usage in zip(seconds, usages, strict=True))
        print(f"| {thread} | {statistics.median(seconds):.2f} | {share:.2%} |")
    print(f"| all | {total:.2f} | |", flush=True)


def main() -> None:
    """Measures the chosen models; the exit status is 1 if one is above its bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=LOADS, action="append")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--repetitions", type=repetitions, default=3)
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "load"
        subprocess.run(["go", "build", "-o", program, "./load"], cwd=GO_CLIENT, check=True)
        for name in given.model or LOADS:
            load = LOADS[name]
            with counted_server(cache_folder("") / "models" / load.file) as server:
                runs = [measure(server, program, load, given.streams) for _ in range(given.repetitions)]
            columns = [f"{name}, run", "overhead ÷ all", "bar", "tokens a step", "tokens/s", "seconds"]
            print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
            for number, (usage, had) in enumerate(runs, 1):
                cells = f"{usage.share:.2%} | < {load.share_max:.0%} | {had['tokens'] / usage.steps:.1f}"
                print(f"| {number} | {cells} | {had['tokens'] / had['seconds']:.1f} | {had['seconds']:.1f} |")
            print_threads(name, [usage for usage, _ in runs])
            failed |= statistics.median(usage.share for usage, _ in runs) >= load.share_max
    sys.exit(failed)


if __name__ == "__main__":
    main()
