"""Steps for tests of executors: which tokens of which sequences run, in which pages, over which tiny model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnitude_service.allocator.pages import pages_for
from magnitude_service.engine.batch import PAGE_TOKENS, SAMPLER_ROW, StepPlan
from magnitude_service.engine.cache_layout import CacheLayout, CacheType
from magnitude_service.engine.program import Program
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.support.tiny_models import write_tiny_model

PAGES = 64
VOCABULARY = 331


@cache
def tiny_model(tensor_type: str, architecture: str = "llama") -> MappedModel:
    """A tiny random model, mapped once; its file is gone already, which a mapping survives."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_tiny_model(path, architecture, tensor_type, vocabulary=VOCABULARY, context=PAGES * PAGE_TOKENS)
        return MMapModelLoader().load(path)


class NanPool:
    """A pool of pages whose every byte is 0xFF, a NaN in both types: whoever looks at what nobody stored is seen."""

    def __init__(self, program: Program, cache_type: CacheType = CacheType.F32, *, pages: int = PAGES) -> None:
        self.layout = CacheLayout(program.cache, cache_type)
        self.pages_total = pages
        self.buffer = np.full(pages * self.layout.page_bytes, 0xFF, np.uint8)


@dataclass(frozen=True)
class Part:
    """Tokens of one sequence from `position` on, in that sequence's pages."""

    tokens: Sequence[int] | NDArray[np.int32]
    position: int
    pages: NDArray[np.int32]


def prompt(count: int, seed: int) -> NDArray[np.int32]:
    """Random tokens of the tiny model."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.int32)


def page_table(tokens: int, first: int) -> NDArray[np.int32]:
    """Enough pages for so many tokens, from `first` on and backwards, so that order in memory means nothing."""
    return np.arange(first, first + pages_for(tokens), dtype=np.int32)[::-1].copy()


def page_tables(lengths: Sequence[int]) -> list[NDArray[np.int32]]:
    """Pages of their own for sequences of so many tokens."""
    firsts = np.cumsum([0, *(pages_for(length) for length in lengths)])
    return [page_table(length, int(first)) for length, first in zip(lengths, firsts, strict=False)]


def step_plan(*parts: Part, all_rows: bool = True, samplers: NDArray[np.void] | None = None) -> StepPlan:
    """A step over some sequences, with an output row for every token, or for each sequence's last.

    Without `samplers` it is greedy. What a page table does not need is -7, which is no page.
    """
    ends = np.cumsum([len(part.tokens) for part in parts])
    tables = np.full((len(parts), max(len(part.pages) for part in parts)), -7, np.int32)
    for table, part in zip(tables, parts, strict=True):
        table[: len(part.pages)] = part.pages
    output_rows = (np.arange(ends[-1]) if all_rows else ends - 1).astype(np.int32)
    return StepPlan(
        tokens=np.concatenate([np.asarray(part.tokens, np.int32) for part in parts]),
        positions=np.concatenate([part.position + np.arange(len(part.tokens), dtype=np.int32) for part in parts]),
        row_begin=np.concatenate([[0], ends]).astype(np.int32),
        page_tables=tables,
        output_rows=output_rows,
        samplers=sampler_rows(len(output_rows), temperature=0) if samplers is None else samplers,
    )


def sampler_rows(count: int, **fields: object) -> NDArray[np.void]:
    """Rows with every filter off and temperature 1, but for the given fields; draws count up."""
    rows = np.zeros(count, SAMPLER_ROW)
    rows["draw"] = np.arange(count)
    for field, value in {"temperature": 1, "top_p": 1, "typical_p": 1, "repetition_penalty": 1, **fields}.items():
        rows[field] = value
    return rows
