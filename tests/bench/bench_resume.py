"""A saved session goes on: from process start to its next token, beside llama-server with a restored slot.

    python -m tests.bench.bench_resume [--tokens 2000 4000] [--repetitions 7] [--prefills 1] [--folder DIR] [--peer DIR]

Prints Markdown: medians of interleaved runs, and the ratios. Each session is computed and saved beforehand, ours with
its pages; one that --folder has is not computed again. A run is: start a process, and as soon as it is ready (our ready
line, llama-server's /health) ask for the one token that follows; llama-server restores its slot first, then gets the
same tokens, and must say that it computed the last of them only. Both get the same file, threads and context, and the
file is in the page cache. llama-server runs without its warm-up and without fitting its arguments to the memory, which
is quicker: once as it is, and once with --no-repack, which is ready sooner and computes more slowly afterwards.
prefill: the same without the slot.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magnitude.client import Client
from magnitude_service.config import cache_folder
from tests.bench.bench_startup import spread
from tests.bench.llama_server import PEER, PEER_PORT, llama_server, started
from tests.bench.turns import Taken, repetitions
from tests.support.serving import MAGNITUDE

MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
RATIO_MAX = 0.5
PEER_FLAGS = {"as it is": [], "--no-repack": ["--no-repack"]}
CONTEXT_GRANULE = 256
"""llama-server rounds its context up to this."""
TOKEN_IDS = range(1_000, 50_000)


@dataclass(frozen=True)
class Setup:
    """What both servers are run with."""

    model: Path
    folder: Path
    peer: Path
    threads: int

    def prompt(self, tokens: int) -> list[int]:
        """So many token ids, always the same."""
        return random.Random(tokens).choices(TOKEN_IDS, k=tokens)


def context_of(tokens: int) -> int:
    """The smallest context in which a session of so many tokens goes on."""
    return -(-(tokens + 2) // CONTEXT_GRANULE) * CONTEXT_GRANULE


@contextmanager
def ours(setup: Setup, tokens: int) -> Iterator[Client]:
    """Our server, ready."""
    flags = ["--threads", str(setup.threads), "--context-tokens", str(context_of(tokens))]
    flags += ["--state-dir", str(setup.folder), "--port", "0"]
    with started([*MAGNITUDE, "serve", "--model", str(setup.model), *flags], {}) as process:
        assert process.stdout is not None
        with Client(process.stdout.readline().split()[2].rstrip(":")) as client:
            yield client


def restoring(setup: Setup, tokens: int, flags: list[str]) -> AbstractContextManager[Any]:
    """The peer, ready, with room for such a session."""
    flags = ["--slot-save-path", str(setup.folder), "--no-ui", "--no-warmup", "--fit", "off", *flags]
    flags = ["-np", "1", "-c", str(context_of(tokens)), *flags]
    return llama_server(setup.peer, str(setup.model), setup.threads, flags)


def post(path: str, **message: Any) -> dict[str, Any]:
    """One call of llama-server."""
    body = json.dumps(message).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PEER_PORT}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def complete(token_ids: list[int]) -> dict[str, Any]:
    """The likeliest token after these, of llama-server."""
    return post("/completion", prompt=token_ids, n_predict=1, temperature=0, cache_prompt=True, return_tokens=True)


def prepare(setup: Setup, tokens: int) -> list[int]:
    """Computes and saves the session of each where the folder has none; returns the tokens that llama-server goes on
    from: those of its slot and the one that followed."""
    told = setup.folder / f"{tokens}.json"
    with ours(setup, tokens) as client:
        session = client.session(f"resumed/{tokens}")
        if not session.versions():
            session.infer(setup.prompt(tokens), max_tokens=1, temperature=0.0, ignore_eos=True)
            session.save()
    if not told.exists():
        with restoring(setup, tokens, []):
            followed = complete(setup.prompt(tokens))["tokens"]
            saved = post("/slots/0?action=save", filename=f"{tokens}.slot")
            assert saved["n_saved"] == tokens, saved
        told.write_text(json.dumps(followed))
    return setup.prompt(tokens) + list(json.loads(told.read_text()))


def measure_ours(setup: Setup, tokens: int) -> tuple[float, float]:
    """Seconds until ready, and until the next token."""
    begin = time.perf_counter()
    with ours(setup, tokens) as client:
        ready = time.perf_counter() - begin
        response = client.session(f"resumed/{tokens}").infer(max_tokens=1, temperature=0.0, ignore_eos=True)
        seconds = time.perf_counter() - begin
    assert (response.usage.completion_tokens, response.usage.cached_tokens) == (1, tokens), response.usage
    return ready, seconds


def measure_peer(setup: Setup, token_ids: list[int], flags: list[str], *, restores: bool = True) -> tuple[float, float]:
    """The same of llama-server, with its slot restored or computed anew."""
    tokens = len(token_ids) - 1
    begin = time.perf_counter()
    with restoring(setup, tokens, flags):
        ready = time.perf_counter() - begin
        if restores:
            restored = post("/slots/0?action=restore", filename=f"{tokens}.slot")
            assert restored["n_restored"] == tokens, restored
        answer = complete(token_ids)
        seconds = time.perf_counter() - begin
    computed, cached = (1, tokens) if restores else (len(token_ids), 0)
    assert (answer["timings"]["prompt_n"], answer["timings"]["cache_n"]) == (computed, cached), answer["timings"]
    return ready, seconds


def table_rows(setup: Setup, tokens: int, repetitions: int, prefills: int) -> Iterator[str]:
    """Measures a session of so many tokens: a row for each way to run llama-server."""
    token_ids = prepare(setup, tokens)
    found: dict[str, tuple[Taken, Taken]] = {name: (Taken(), Taken()) for name in ("ours", *PEER_FLAGS)}
    for run in range(repetitions + 1):  # the first run of each fills the page cache
        figures = {"ours": measure_ours(setup, tokens)}
        figures |= {name: measure_peer(setup, token_ids, flags) for name, flags in PEER_FLAGS.items()}
        for name, (ready, seconds) in figures.items() if run else ():
            found[name][0].append(ready)
            found[name][1].append(seconds)
    for name, flags in PEER_FLAGS.items():
        slow = Taken(measure_peer(setup, token_ids, flags, restores=False)[1] for _ in range(prefills))
        mine, theirs = found["ours"], found[name]
        cells = [f"{each[0].median:.2f} | {spread(each[1], 2)}" for each in (mine, theirs)]
        ratio = mine[1].median / theirs[1].median
        yield (
            f"| {tokens:,} | {cells[0]} | {name} | {cells[1]} | {ratio:.2f} | ≤ {RATIO_MAX} | "
            f"{f'{slow.median:.1f}' if prefills else ''} |"
        )


def main() -> None:
    """Measures the chosen lengths and prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000, 4_000])
    parser.add_argument("--repetitions", type=repetitions, default=7)
    parser.add_argument("--prefills", type=int, default=1, help="Runs of llama-server without its slot.")
    parser.add_argument("--folder", type=Path, help="Where the saved sessions are kept; absent: nowhere.")
    parser.add_argument("--peer", default=PEER, help="Folder of llama-server.")
    given = parser.parse_args()
    columns = ["tokens", "ready, s", "next token, s", "llama-server", "ready, s", "next token, s", "ratio", "bar"]
    columns += ["by prefill, s"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        model, peer = cache_folder("") / "models" / MODEL, Path(given.peer).expanduser()
        setup = Setup(model, folder.resolve(), peer, os.cpu_count() or 1)
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
        for tokens in given.tokens:
            for row in table_rows(setup, tokens, given.repetitions, given.prefills):
                print(row, flush=True)


if __name__ == "__main__":
    main()
