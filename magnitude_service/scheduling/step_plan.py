"""Turns the chunks of a step into the arrays of a StepPlan. Output rows follow the order of the chunks."""

from __future__ import annotations

from collections import abc

import numpy as np
from numpy.typing import NDArray

from magnitude_service.allocator.pages import pages_for
from magnitude_service.engine.batch import SAMPLER_ROW, StepPlan
from magnitude_service.scheduling.sampler_rows import SamplerTemplate
from magnitude_service.scheduling.sequence import Chunk, Sequence


def assemble(chunks: abc.Sequence[Chunk]) -> StepPlan:
    """The plan of a step with at least one chunk; its result's rows are for each chunk `scored`, then the sample."""
    starts = np.array([chunk.sequence.computed for chunk in chunks], np.int32)
    counts = np.array([chunk.rows for chunk in chunks], np.int32)
    row_begin = np.zeros(len(chunks) + 1, np.int32)
    counts.cumsum(out=row_begin[1:])
    offsets = starts - row_begin[:-1]  # position minus row, the same within a sequence
    rows = np.arange(row_begin[-1], dtype=np.int32)
    outputs = _OutputRows(sum(len(chunk.scored) + chunk.samples for chunk in chunks))
    for chunk, offset, row_end in zip(chunks, offsets.tolist(), row_begin[1:].tolist(), strict=True):
        if chunk.scored:
            outputs.add_scores(chunk, offset)
        if chunk.samples:
            outputs.add_sample(chunk.sequence, row_end - 1)
    return StepPlan(
        tokens=np.concatenate([s.tokens[s.computed : s.computed + count] for s, count, _, _ in chunks]),
        positions=rows + np.repeat(offsets, counts),
        row_begin=row_begin,
        page_tables=_page_tables(chunks, pages_for(int((starts + counts).max()))),
        output_rows=outputs.rows,
        samplers=outputs.finished_samplers(),
        window=np.concatenate(outputs.windows),
        bias_ids=np.concatenate(outputs.bias_ids),
        bias_values=np.concatenate(outputs.bias_values),
        masks=np.stack(outputs.masks) if outputs.masks else _NO_MASKS,
    )


_NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
_NO_VALUES: NDArray[np.float32] = np.empty(0, np.float32)
_NO_MASKS: NDArray[np.uint32] = np.empty((0, 0), np.uint32)


def _page_tables(chunks: abc.Sequence[Chunk], width: int) -> NDArray[np.int32]:
    """The first `width` pages of each sequence; what a shorter one lacks is 0 and never read."""
    tables = np.zeros((len(chunks), width), np.int32)
    for table, chunk in zip(tables, chunks, strict=True):
        pages = chunk.sequence.pages[:width]
        table[: pages.size] = pages
    return tables


class _OutputRows:
    """Sampler rows as they grow, and the arrays that they hold slices of."""

    def __init__(self, count: int) -> None:
        self.rows = np.empty(count, np.int32)
        self.samplers = np.empty(count, SAMPLER_ROW)
        self.windows = [_NO_IDS]
        self.bias_ids = [_NO_IDS]
        self.bias_values = [_NO_VALUES]
        self.masks: list[NDArray[np.uint32]] = []
        self._mask_rows: dict[SamplerTemplate, int] = {}  # the choices of a request share one
        self._count = 0
        self._sampled: list[int] = []
        self._draws: list[int] = []
        self._window_end = 0
        self._bias_end = 0

    def add_scores(self, chunk: Chunk, offset: int) -> None:
        """One row per scored position; its target is the token at the next one."""
        scored, begin = chunk.scored, self._count
        self._count = end = begin + len(scored)
        self.rows[begin:end] = np.arange(scored.start - offset, scored.stop - offset)
        self.samplers[begin:end] = chunk.sequence.state.template.score
        self.samplers["target"][begin:end] = chunk.sequence.tokens[scored.start + 1 : scored.stop + 1]

    def add_sample(self, sequence: Sequence, row: int) -> None:
        """The row that chooses the token behind the last one of `sequence`."""
        index, template = self._count, sequence.state.template
        self._count += 1
        self.rows[index] = row
        self.samplers[index] = sequence.sampler
        self._sampled.append(index)
        self._draws.append(sequence.length)
        if template.window_tokens:
            window = sequence.tokens[max(sequence.length - template.window_tokens, 0) : sequence.length]
            self.windows.append(window)
            self._slice(index, "window", self._window_end, window.size)
            self._window_end += window.size
        ids, values = sequence.bias()
        if ids.size:
            self.bias_ids.append(ids)
            self.bias_values.append(values)
            self._slice(index, "bias", self._bias_end, ids.size)
            self._bias_end += ids.size
        if template.mask is not None:
            if template not in self._mask_rows:
                self._mask_rows[template] = len(self.masks)
                self.masks.append(template.mask)
            self.samplers["mask"][index] = self._mask_rows[template]

    def finished_samplers(self) -> NDArray[np.void]:
        """All sampler rows, after the last was added."""
        self.samplers["draw"][self._sampled] = self._draws
        return self.samplers

    def _slice(self, index: int, name: str, begin: int, size: int) -> None:
        self.samplers[f"{name}_begin"][index] = begin
        self.samplers[f"{name}_end"][index] = begin + size
