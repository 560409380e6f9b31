"""Start-up and memory beside llama-server: from process start to the first "ready", and anonymous memory then.

    python -m tests.bench.bench_startup [--model smollm2|qwen] [--repetitions 7] [--peer FOLDER]

Prints Markdown: medians of interleaved runs, and the ratios. llama-server is ready when /health says so; we are when
the ready line is there, and grpc.health.v1 must then report SERVING. Both get the same threads and context. Anonymous
memory is RssAnon at that moment: no key/value page of ours has been touched by then; llama-server's has its whole cache
in it, and weights that it has packed anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import grpc

from magnitude_service.config import cache_folder
from tests.bench.llama_server import PEER, llama_server, started
from tests.bench.turns import repetitions
from tests.support.serving import MAGNITUDE

MODELS = {"smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", 1.5), "qwen": ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 0.6)}
"""File, and the bar for our time as a multiple of llama-server's."""

ANONYMOUS_MIB_MAX = 150
CONTEXT_TOKENS = 2048

CHECK = b""
SERVING = b"\x08\x01"
"""An empty HealthCheckRequest, and the HealthCheckResponse that says SERVING."""


def anonymous_mib(pid: int) -> float:
    """RssAnon of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def measure_ours(model: str, threads: int) -> tuple[float, float]:
    """Seconds until ready, and MiB of anonymous memory then."""
    flags = ["--port", "0", "--threads", str(threads), "--context-tokens", str(CONTEXT_TOKENS)]
    begin = time.perf_counter()
    with started([*MAGNITUDE, "serve", "--model", model, *flags], {}) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2].rstrip(":")
        seconds = time.perf_counter() - begin
        with grpc.insecure_channel(address) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(CHECK, timeout=10) == SERVING
        return seconds, anonymous_mib(process.pid)


def measure_peer(folder: str, model: str, threads: int) -> tuple[float, float]:
    """The same of llama-server."""
    begin = time.perf_counter()
    with llama_server(Path(folder), model, threads, ["-c", str(CONTEXT_TOKENS)]) as process:
        return time.perf_counter() - begin, anonymous_mib(process.pid)


def spread(values: list[float], digits: int) -> str:
    """Median, and the smallest and largest."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Measures the chosen models and prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--repetitions", type=repetitions, default=7)
    parser.add_argument("--peer", default=PEER, help="Folder of llama-server.")
    given = parser.parse_args()
    threads, folder = os.cpu_count() or 1, os.path.expanduser(given.peer)
    print("| model | ready, ms | llama-server, ms | ratio | bar | anonymous, MiB | bar | llama-server, MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.model or MODELS:
        file, bar = MODELS[name]
        model = str(cache_folder("") / "models" / file)
        ours, theirs = [], []
        for measured in (False, *[True] * given.repetitions):  # the first run of each fills the page cache
            found = measure_ours(model, threads), measure_peer(folder, model, threads)
            if measured:
                ours.append(found[0])
                theirs.append(found[1])
        our_ms, their_ms = ([seconds * 1000 for seconds, _ in each] for each in (ours, theirs))
        our_mib, their_mib = ([mib for _, mib in each] for each in (ours, theirs))
        ratio = statistics.median(our_ms) / statistics.median(their_ms)
        print(
            f"| {name} | {spread(our_ms, 0)} | {spread(their_ms, 0)} | {ratio:.2f} | {bar} | "
            f"{spread(our_mib, 1)} | {ANONYMOUS_MIB_MAX} | {spread(their_mib, 1)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
