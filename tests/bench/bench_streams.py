"""The whole server: tokens per second in total, over gRPC, with one stream and with several.

    python tests/bench/bench_streams.py [--model smollm2|qwen] [--streams 1 2 4 8 16] [--repetitions 5]

Prints Markdown: medians of interleaved runs, and the ratio to one stream.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from magnitude.client import Client
from magnitude_service.config import cache_folder

MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", 128),
    "qwen": ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 48),
}
PROMPT = "Write a long story about a lighthouse keeper and the sea."


@contextmanager
def served(model: str) -> Iterator[str]:
    """A server of its own process; its address."""
    command = [sys.executable, "-m", "magnitude_service.cli", "serve", "--model", model, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[2].rstrip(":")
    finally:
        process.terminate()
        process.wait()


def measure(client: Client, streams: int, tokens: int) -> float:
    """Generated tokens per second over all streams, from the first request to the last token."""
    counts: list[int] = []

    def work(seed: int) -> None:
        with client.stream(PROMPT, max_tokens=tokens, ignore_eos=True, seed=seed) as stream:
            for _ in stream:
                pass
            assert stream.finished is not None
            counts.append(stream.finished.usage.completion_tokens)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(streams)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [tokens] * streams, counts
    return sum(counts) / (time.perf_counter() - begin)


def main() -> None:
    """Measures the chosen models and prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    print("| model | streams | tokens/s in total (smallest to largest) | ratio to one |\n|---|---|---|---|")
    for name in given.model or MODELS:
        file, tokens = MODELS[name]
        with served(str(cache_folder("") / "models" / file)) as address, Client(address) as client:
            measure(client, 1, 8)
            figures: dict[int, list[float]] = {streams: [] for streams in given.streams}
            for _ in range(given.repetitions):
                for streams, found in figures.items():
                    found.append(measure(client, streams, tokens))
        one = statistics.median(figures[given.streams[0]])
        for streams, found in figures.items():
            middle = statistics.median(found)
            print(f"| {name} | {streams} | {middle:.1f} ({min(found):.1f} to {max(found):.1f}) | {middle / one:.2f} |")


if __name__ == "__main__":
    main()
