"""Whole models beside llama.cpp: same file, same threads, interleaved runs, medians and ratios.

    python -m tests.bench.bench_models [--model smollm2|qwen|llama-8b] [--type F16] [--repetitions 5] [--threads 2]
        [--isa avx2]

The peer is llama-bench of `tests/bench/build_llama_cpp.sh` (built once, with every instruction set of this
processor), with and without flash attention: each figure takes its better setting. `--isa avx2` holds both sides to
AVX2: our table is forced, the peer is built without the rest. llama-8b has Llama-3-8B's shapes and random blocks
(`random_model.py` makes it) and is measured only when asked for. `--type` has the peer's llama-quantize write the model
in another type first: as text it is of no use, as a file of that type it is like any other. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from magnitude_service.allocator.pages import KeyValueCache
from magnitude_service.config import cache_folder
from magnitude_service.engine.architectures import record
from magnitude_service.engine.batch import PAGE_TOKENS, SAMPLER_ROW, StepPlan
from magnitude_service.engine.cache_layout import CacheLayout, CacheType
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.loader import MMapModelLoader
from magnitude_service.loader.options import LoaderOptions
from tests.bench.random_model import NAME as RANDOM_MODEL
from tests.bench.random_model import random_model
from tests.bench.turns import repetitions

HERE = Path(__file__).parent
ROWS_MAX = 512


@dataclass(frozen=True, slots=True)
class Case:
    """One model, with the lengths that the field measures it by."""

    file: str
    prompt_tokens: int
    generated_tokens: int


CASES = {
    "smollm2": Case("SmolLM2-135M-Instruct.Q4_1.gguf", 512, 64),
    "qwen": Case("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 256, 32),
    "llama-8b": Case(RANDOM_MODEL, 256, 8),
}


class Ours:
    """The native executor alone: no server, no text, as llama-bench is."""

    def __init__(self, path: Path, threads: int, isa: str) -> None:
        self.model = MMapModelLoader(LoaderOptions()).load(str(path))
        program = record(self.model)
        cache = KeyValueCache(CacheLayout(program.cache, CacheType.F16), 64)
        options = NativeOptions(threads=threads, rows_max=ROWS_MAX, isa=isa)
        self.executor = NativeExecutor(program, self.model, cache, options)
        self.vocabulary = program.vocabulary_size

    def _plan(self, tokens: np.ndarray, first: int) -> StepPlan:
        count = len(tokens)
        samplers = np.zeros(1, SAMPLER_ROW)
        samplers["top_p"] = samplers["typical_p"] = samplers["repetition_penalty"] = 1
        return StepPlan(
            tokens=tokens.astype(np.int32),
            positions=np.arange(first, first + count, dtype=np.int32),
            row_begin=np.array([0, count], np.int32),
            page_tables=np.arange(64, dtype=np.int32)[None, : (first + count - 1) // PAGE_TOKENS + 1],
            output_rows=np.array([count - 1], np.int32),
            samplers=samplers,
        )

    def prefill(self, count: int) -> float:
        """Tokens per second of a prompt of random ids."""
        ids = np.random.default_rng(7).integers(0, self.vocabulary, count)
        begin = time.perf_counter()
        for first in range(0, count, ROWS_MAX):
            self.executor.step(self._plan(ids[first : first + ROWS_MAX], first))
        return count / (time.perf_counter() - begin)

    def decode(self, count: int) -> float:
        """Tokens per second, one after another, from an empty context."""
        token = np.array([1])
        begin = time.perf_counter()
        for position in range(count):
            result = self.executor.step(self._plan(token, position))
            assert result is not None
            token = result.token
        return count / (time.perf_counter() - begin)


def peer(programs: Path, model: Path, case: Case, threads: int, flash: int) -> tuple[float, float]:
    """llama-bench's tokens per second: prompt, generation."""
    lengths = ["-p", str(case.prompt_tokens), "-n", str(case.generated_tokens)]
    settings = ["-t", str(threads), "-r", "1", "-fa", str(flash), "-o", "json"]
    command: list[str | Path] = [programs / "llama-bench", "-m", model, *settings, *lengths]
    environment = os.environ | {"LD_LIBRARY_PATH": str(programs)}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    prompt, generation = json.loads(done.stdout)
    return prompt["avg_ts"], generation["avg_ts"]


def spread(values: list[float]) -> str:
    """Median with the smallest and the largest."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def retyped(path: Path, programs: Path, file_type: str) -> Path:
    """The model in another type, by llama-quantize's name for it; made once."""
    made = path.with_name(f"{path.stem}.{file_type}{path.suffix}")
    if not made.exists():
        whole = made.with_suffix(".part")
        command: list[str | Path] = [programs / "llama-quantize", "--allow-requantize", path, whole, file_type]
        subprocess.run(command, env=os.environ | {"LD_LIBRARY_PATH": str(programs)}, capture_output=True, check=True)
        whole.rename(made)
    return made


def bench(name: str, file_type: str, programs: Path, repetitions: int, threads: int, isa: str) -> list[str]:
    """Rows of the table for one model."""
    case = CASES[name]
    path = random_model() if case.file == RANDOM_MODEL else cache_folder("") / "models" / case.file
    if file_type:
        path, name = retyped(path, programs, file_type), f"{name}, {file_type}"
    with path.open("rb") as file:  # what a mapping reads from the disk is cached in large pages, as after a start
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ours = Ours(path, threads, isa)
    ours.prefill(case.prompt_tokens), ours.decode(4)
    mine: tuple[list[float], list[float]] = ([], [])
    theirs: dict[int, tuple[list[float], list[float]]] = {0: ([], []), 1: ([], [])}
    for _ in range(repetitions):
        mine[0].append(ours.prefill(case.prompt_tokens))
        mine[1].append(ours.decode(case.generated_tokens))
        for flash, figures in theirs.items():
            prompt, generation = peer(programs, path, case, threads, flash)
            figures[0].append(prompt)
            figures[1].append(generation)
    rows = []
    for index, what in enumerate((f"prefill {case.prompt_tokens}", f"decode {case.generated_tokens}")):
        best = max(theirs.values(), key=lambda figures: statistics.median(figures[index]))[index]
        ratio = statistics.median(mine[index]) / statistics.median(best)
        rows.append(f"| {name} | {what} | {spread(mine[index])} | {spread(best)} | {ratio:.2f} |")
    return rows


def main() -> None:
    """Measures the chosen models and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=CASES, action="append")
    parser.add_argument("--type", action="append", help="by llama-quantize's name, F16 or Q6_K; its own if absent")
    parser.add_argument("--repetitions", type=repetitions, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", choices=("native", "avx2"), default="native")
    given = parser.parse_args()
    isa = "" if given.isa == "native" else given.isa
    built = subprocess.run(["bash", HERE / "build_llama_cpp.sh", given.isa], capture_output=True, check=True, text=True)
    programs = Path(built.stdout.strip().splitlines()[-1])
    print(f"{given.isa}, {given.threads} threads, {given.repetitions} interleaved runs", end="; ")
    print("tokens/s, medians (smallest to largest)")
    print("\n| model | what | magnitude | llama.cpp b11434 | ratio |\n|---|---|---|---|---|")
    for name in given.model or ("smollm2", "qwen"):
        for file_type in given.type or [""]:
            rows = bench(name, file_type, programs, given.repetitions, given.threads, isa)
            print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
