"""Speed of single kernels: `make bench-kernels`, or with tables, types and counts of threads as arguments.

For one token a matmul reads weights as fast as memory gives them, so its GB/s stand beside a plain read loop over the
same mapped file on the same threads, measured in turn with it. For many tokens it computes; GMAC/s count one
multiplication of a weight by an activation. Threads are a pool's and take chunks of rows as in a step. Each figure is
the best of several runs: other work on the machine only ever makes a run slower.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from magnitude_service.config import cache_folder
from magnitude_service.engine.cache_rows import CacheType, RowShape
from magnitude_service.formats import _formats
from magnitude_service.kernels import _kernels

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F32", "F16", "BF16")
STREAM_BYTES = 192 << 20  # more than any cache that we know
FEW_TOKENS = (1, 2, 4, 8)
MANY_TOKENS = (64, 512)
SHAPES = ((1536, 1536), (1536, 8960))  # (N, K): of Qwen2.5-Coder-1.5B
ROUNDS = 8


@dataclass(slots=True)
class Rates:
    """GB/s of weights: of the plain read, and multiplied by few tokens."""

    read: float = 0.0
    by_tokens: dict[int, float] = field(default_factory=lambda: dict.fromkeys(FEW_TOKENS, 0.0))


def random_weights(name: str, rows: int, columns: int) -> np.ndarray:
    """Bytes of any content but of ordinary scales: 0x2a2a and 0x3535 are small numbers in f16, bf16 and f32."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    rng = np.random.default_rng(1)
    return rng.choice(np.array([0x2A, 0x35], np.uint8), (rows, columns // elements * size))


@contextmanager
def mapped(weights: np.ndarray) -> Iterator[np.ndarray]:
    """The same rows as bytes of a file, mapped as a model's file is."""
    with tempfile.TemporaryDirectory(dir=cache_folder("")) as folder:
        path = Path(folder) / "weights"
        weights.tofile(path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that it is read in large pages
            mapping = _formats.map_file(file.fileno(), weights.nbytes)
        assert isinstance(mapping, _formats.Mapping), os.strerror(mapping)
        mapping.populate()
        yield mapping.view.reshape(weights.shape)


def multiply_seconds(
    table: str, name: str, weights: np.ndarray, tokens: int, columns: int, *, pool: object, repeats: int = 1
) -> float:
    x = np.random.default_rng(2).standard_normal((tokens, columns)).astype(np.float32)
    y = np.empty((tokens, len(weights)), np.float32)
    activations = _kernels.ops.Activations(table, x)
    tensor_type = int(GGMLQuantizationType[name])
    rows = len(weights)
    return float(_kernels.ops.matmul(activations, tensor_type, weights, y, n_end=rows, repeats=repeats, pool=pool))


def stream_rates(tables: list[str], name: str, columns: int, pools: dict[int, object]) -> dict[tuple[str, int], Rates]:
    """GB/s by table and threads, over weights that no cache holds."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    rows = STREAM_BYTES // (columns // elements * size) // 16 * 16
    found = {(table, threads): Rates() for threads in pools for table in tables}
    with mapped(random_weights(name, rows, columns)) as weights:
        flat = weights.reshape(-1)
        for _ in range(ROUNDS):
            for (table, threads), rates in found.items():
                pool = pools[threads]
                rates.read = max(rates.read, flat.nbytes / _kernels.ops.read_seconds(flat, pool) / 1e9)
                for tokens in FEW_TOKENS:
                    seconds = multiply_seconds(table, name, weights, tokens, columns, pool=pool)
                    rates.by_tokens[tokens] = max(rates.by_tokens[tokens], flat.nbytes / seconds / 1e9)
    return found


def best_seconds(run: Callable[[], object], rounds: int = 30) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def report_matmul(tables: list[str], names: list[str], threads: list[int]) -> None:
    pools = {count: _kernels.ops.Pool(count) for count in threads}
    print(
        "| type | table | threads | read | " + " | ".join(f"M={tokens}" for tokens in FEW_TOKENS), end=" | M=1 / read |"
    )
    print("".join(f" M={tokens}, K={columns} |" for tokens in MANY_TOKENS for _, columns in SHAPES))
    print("|---|---|---|---|" + "---|" * (len(FEW_TOKENS) + 1 + len(MANY_TOKENS) * len(SHAPES)))
    for name in names:
        for (table, count), rates in stream_rates(tables, name, SHAPES[0][1], pools).items():
            cells = [name, table, str(count), f"{rates.read:.1f}"]
            cells += [f"{rate:.1f}" for rate in rates.by_tokens.values()] + [f"{rates.by_tokens[1] / rates.read:.0%}"]
            for tokens in MANY_TOKENS:
                for rows, columns in SHAPES:
                    part = random_weights(name, count * rows // 8 // 16 * 16, columns)
                    pool = pools[count]
                    seconds = multiply_seconds(table, name, part, tokens, columns, pool=pool, repeats=ROUNDS)
                    cells.append(f"{tokens * part.shape[0] * columns / seconds / 1e9:.0f}")
            print("| " + " | ".join(cells) + " |", flush=True)


def report_others(tables: list[str]) -> None:
    """Microseconds of what stands between the matmuls, for one token of Qwen2.5-Coder-1.5B, the call included."""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(1536).astype(np.float32) for _ in range(2))
    gate, up = (rng.standard_normal(8960).astype(np.float32) for _ in range(2))
    logits = rng.standard_normal(151_936).astype(np.float32)
    print("\n| microseconds | " + " | ".join(tables) + " |\n|---|" + "---|" * len(tables))
    runs: dict[str, Callable[[str], object]] = {
        "quantize 1536": lambda table: _kernels.ops.Activations(table, x[None]),
        "rms_norm 1536": lambda table: _kernels.ops.rms_norm(table, x, w, 1e-6, np.empty_like(x)),
        "silu_multiply 8960": lambda table: _kernels.ops.silu_multiply(table, gate, up, np.empty_like(up)),
        "softmax_statistics 151936": lambda table: _kernels.ops.softmax_statistics(table, logits),
    }
    for label, run in runs.items():
        print(f"| {label} | " + " | ".join(f"{best_seconds(lambda t=t, r=run: r(t)) * 1e6:.1f}" for t in tables) + " |")


def attention_seconds(table: str, cache_type: CacheType, rows: int, head_size: int) -> float:
    """One chunk of 256 positions that all rows see, from the second-level cache."""
    rng = np.random.default_rng(4)
    q, keys = (rng.standard_normal((count, head_size)).astype(np.float32) for count in (rows, 256))
    pages = {side: np.zeros((8, 32 * RowShape(cache_type, head_size).size_bytes), np.uint8) for side in (True, False)}
    for is_key, page in pages.items():
        _kernels.ops.store(table, keys, cache_type, is_key, page)
    limit, m, total, outputs = (
        np.full(rows, 256, np.int32),
        np.empty(rows, np.float32),
        np.empty(rows, np.float32),
        q.copy(),
    )
    arguments = (table, q, limit, 0, pages[True], pages[False], cache_type, 0.1, 2**31 - 1, 0.0, m, total, outputs)
    return min(_kernels.ops.attention_chunk(*arguments) for _ in range(30))


def report_attention(tables: list[str]) -> None:
    """GMAC/s of attention: six rows as one token of Qwen2.5-Coder-1.5B has for a head, and a tile of a prompt."""
    shapes = ((6, 128), (96, 128), (96, 64))
    print("\n| attention, GMAC/s | table | " + " | ".join(f"{rows} rows, D {size}" for rows, size in shapes) + " |")
    print("|---|---|" + "---|" * len(shapes))
    for cache_type in CacheType:
        for table in tables:
            seconds = [attention_seconds(table, cache_type, *shape) for shape in shapes]
            rates = [rows * 256 * size * 2 / s / 1e9 for (rows, size), s in zip(shapes, seconds, strict=True)]
            print(f"| {cache_type.name} | {table} | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default=",".join(t for t in _kernels.supported_tables() if t != "scalar"))
    parser.add_argument("--types", default=",".join(TYPES))
    every = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, every}), help="of the matmuls")
    arguments = parser.parse_args()
    tables = [table for table in arguments.tables.split(",") if table] or ["scalar"]
    report_matmul(tables, arguments.types.split(","), arguments.threads)
    report_others([*tables, *({"scalar"} - set(tables))])
    report_attention(tables)


if __name__ == "__main__":
    main()
