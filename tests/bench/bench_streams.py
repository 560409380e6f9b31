"""Whole servers: tokens per second in total with one stream and with several, beside llama-server.

    python -m tests.bench.bench_streams [--model smollm2|qwen] [--streams 1 2 4 8 16] [--repetitions 5] [--peer FOLDER]

Both serve the same file with the same threads and choose the likeliest token. Prompts are alike, but each is asked once
and begins with a number of its own, so that both sides compute it and no cache answers. Ours comes over gRPC,
llama-server's (of `tests/bench/build_llama_cpp.sh`, continuous batching, a slot per stream) over HTTP with server-sent
events. Runs are interleaved; one server works at a time. Prints Markdown: medians, and the ratios.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from magnitude.client import Client
from magnitude_service.config import cache_folder
from tests.bench.llama_server import PEER, PEER_PORT, llama_server
from tests.bench.turns import repetitions

MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", 128),
    "qwen": ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 48),
}
PROMPTS = (f"{number} ships pass. Write a long story about a lighthouse keeper." for number in itertools.count(1000))
THREADS = 2
CONTEXT_TOKENS = 512
"""Of one stream."""

Ask = Callable[[str, int], int]
"""Generates (prompt, tokens) and tells how many came."""


@contextmanager
def ours(model: str) -> Iterator[Ask]:
    """Our server, in a process of its own."""
    command = [sys.executable, "-m", "magnitude_service.cli", "serve", "--model", model, "--port", "0"]
    command += ["--threads", str(THREADS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        with Client(process.stdout.readline().split()[2].rstrip(":")) as client:

            def ask(prompt: str, tokens: int) -> int:
                with client.stream(prompt, max_tokens=tokens, ignore_eos=True, temperature=0.0) as stream:
                    for _ in stream:
                        pass
                    assert stream.finished is not None
                    return int(stream.finished.usage.completion_tokens)

            yield ask
    finally:
        process.terminate()
        process.wait()


@contextmanager
def theirs(model: str, folder: Path, slots: int) -> Iterator[Ask]:
    """The peer, in a process of its own."""
    flags = ["-np", str(slots), "--cont-batching", "-c", str(slots * CONTEXT_TOKENS), "--no-ui"]
    with llama_server(folder, model, THREADS, flags):
        yield _ask_llama_server


def _ask_llama_server(prompt: str, tokens: int) -> int:
    question = {
        "prompt": prompt,
        "n_predict": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", PEER_PORT)
    connection.request("POST", "/completion", json.dumps(question), {"Content-Type": "application/json"})
    events = [line for line in connection.getresponse() if line.startswith(b"data: ")]
    connection.close()
    return int(json.loads(events[-1].removeprefix(b"data: "))["tokens_predicted"])


def measure(ask: Ask, streams: int, tokens: int) -> float:
    """Generated tokens per second over all streams, from the first request to the last token."""
    counts: list[int] = []
    prompts = list(itertools.islice(PROMPTS, streams))
    threads = [threading.Thread(target=lambda prompt=prompt: counts.append(ask(prompt, tokens))) for prompt in prompts]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [tokens] * streams, counts
    return sum(counts) / (time.perf_counter() - begin)


def _spread(found: list[float]) -> str:
    return f"{statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"


def main() -> None:
    """Measures the chosen models and prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repetitions", type=repetitions, default=5)
    parser.add_argument("--peer", default=PEER, help="folder of llama-server; empty: ours alone")
    given = parser.parse_args()
    print("| model | streams | magnitude, tokens/s | llama-server, tokens/s | ratio | ours, to one stream |")
    print("|---|---|---|---|---|---|")
    for name in given.model or MODELS:
        file, tokens = MODELS[name]
        path = str(cache_folder("") / "models" / file)
        with ExitStack() as stack:
            servers = [stack.enter_context(ours(path))]
            if given.peer:
                slots = max(given.streams)
                servers.append(stack.enter_context(theirs(path, Path(given.peer).expanduser(), slots)))
            figures: list[dict[int, list[float]]] = [{streams: [] for streams in given.streams} for _ in servers]
            for ask in servers:
                measure(ask, 1, 8)
            for _ in range(given.repetitions):
                for streams in given.streams:
                    for ask, found in zip(servers, figures, strict=True):
                        found[streams].append(measure(ask, streams, tokens))
        middle = [{streams: statistics.median(runs) for streams, runs in found.items()} for found in figures]
        for streams, runs in figures[0].items():
            peer = (
                (_spread(figures[1][streams]), f"{middle[0][streams] / middle[1][streams]:.2f}")
                if given.peer
                else ("", "")
            )
            gain = middle[0][streams] / middle[0][given.streams[0]]
            print(f"| {name} | {streams} | {_spread(runs)} | {peer[0]} | {peer[1]} | {gain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
