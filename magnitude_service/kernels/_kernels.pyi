from types import ModuleType

import numpy as np
from numpy.typing import NDArray

ROW_GROUP: int
PAGE_TOKENS: int
CHUNK_PAGES: int
TOP_LOGPROBS_MAX: int

ops: ModuleType
"""Single kernels of a named table, for tests and benchmarks."""

self_test: ModuleType
"""The self-test of tables, for tests."""

def supported_tables() -> list[str]:
    """Names of the tables that this machine runs, best first."""

def select_table(forced: str) -> tuple[str | None, list[tuple[str, str]]]:
    """The table to compute with, or None if the forced one cannot be, and what self-tests found: (table, what).

    The first call tests the table in a child process, about two milliseconds; what it finds is kept.
    """

class PlanLists:
    """What penalties, biases and masks of a step point into."""

    def __init__(
        self,
        window: NDArray[np.int32],
        bias_ids: NDArray[np.int32],
        bias_values: NDArray[np.float32],
        masks: NDArray[np.uint32],
    ) -> None: ...

class Plan:
    """The arrays of a StepPlan, `samplers` as bytes. Keeps them alive."""

    def __init__(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        row_begin: NDArray[np.int32],
        page_tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        samplers: NDArray[np.uint8],
        lists: PlanLists,
    ) -> None: ...

def sample_rows(
    logits: NDArray[np.float32],
    samplers: NDArray[np.uint8],
    lists: PlanLists,
    tokens: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    statuses: NDArray[np.uint8],
    top_ids: NDArray[np.int32],
    top_logprobs: NDArray[np.float32],
) -> None:
    """Chooses one token per row of logits, as a step does."""

def sampler_row_offsets() -> dict[str, int]:
    """Byte offset of each field of SamplerRow, and its itemsize."""

def uniform_draw(seed: int, draw: int) -> float:
    """The random number in [0, 1) of a row."""

class Weights:
    """A matrix over mapped bytes."""

class RowSource:
    """How the rows of a matmul come about."""

class Matmul:
    """One matmul of a phase."""

class Rotation:
    """How the heads of a buffer are rotated; without arguments, not at all."""

    def __init__(self) -> None: ...

class Executor:
    """A program is built by the add_ methods and finish; then it runs steps."""

    def __init__(
        self,
        isa: str,
        threads: int,
        slot_widths: list[int],
        rows_max: int,
        sequences_max: int,
        output_rows_max: int,
        vocabulary: int,
        context_length: int,
        cache: NDArray[np.uint8],
        cache_type: int,
        pages: int,
        layers: int,
        heads: int,
        key_value_heads: int,
        head_size: int,
    ) -> None: ...
    def weights(self, data: NDArray[np.uint8], type: int, rows: int, columns: int) -> Weights: ...
    @staticmethod
    def first_rows(weights: Weights, rows: int) -> Weights: ...
    def plain_rows(self, input: int) -> RowSource: ...
    def norm_rows(self, input: int, weight: NDArray[np.float32], epsilon: float) -> RowSource: ...
    def gated_rows(self, gate: int, up: int) -> RowSource: ...
    def matmul(self, weights: Weights, bias: NDArray[np.float32] | None, output: int, accumulate: bool) -> Matmul: ...
    def rope_table(self, dimensions: int, base: float, scale: float, factors: NDArray[np.float32] | None) -> int: ...
    def rotation(self, table: int, halves: bool) -> Rotation: ...
    def add_embed(self, layer: int, embedding: Weights, output: int) -> None: ...
    def add_norm(self, layer: int, weight: NDArray[np.float32], epsilon: float, input: int, output: int) -> None: ...
    def add_gated_activation(self, layer: int, width: int, gate: int, up: int, output: int) -> None: ...
    def add_add(self, layer: int, width: int, a: int, b: int, output: int) -> None: ...
    def add_matmuls(self, layer: int, source: RowSource, matmuls: list[Matmul]) -> None: ...
    def add_attention(
        self,
        layer: int,
        cache_layer: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: NDArray[np.float32] | None,
        q: int,
        k: int,
        v: int,
        output: int,
        q_rotation: Rotation,
        k_rotation: Rotation,
    ) -> None: ...
    def set_logits(self, source: RowSource, weights: Weights, bias: NDArray[np.float32] | None) -> None: ...
    def finish(self) -> None: ...
    def step(
        self,
        plan: Plan,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        statuses: NDArray[np.uint8],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
    ) -> bool:
        """Runs a step and chooses tokens; False when it was aborted."""
    def logits(self, plan: Plan, logits: NDArray[np.float32]) -> bool:
        """Runs a step and gives its logits; False when it was aborted."""
    def abort(self) -> None: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def isa(self) -> str: ...
