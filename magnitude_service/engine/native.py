"""The native executor: a Program compiled once to native phases over mapped weights, then one call per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import StepPlan, StepResult
from magnitude_service.engine.cache_layout import PageMemory
from magnitude_service.engine.compilation import CompiledProgram, compile_program
from magnitude_service.engine.phases import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Logits,
    Matmuls,
    Norm,
    Phase,
    Rotation,
    RowSource,
)
from magnitude_service.engine.program import CacheShape, Program
from magnitude_service.kernels import _kernels, select_instruction_set

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel


EVERYTHING = 2**31 - 1
"""The window of an attention that has none, for native code."""

ATTENTION_ROWS = 96
"""Query rows of an attention tile, unless one token has more: `kTileRows` in kernels/csrc/attention_schedule.cpp."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """How a program is run. None of these changes a bit of any result."""

    threads: int
    """Threads of a step, the calling one included."""
    isa: str = ""
    """Kernels by name, a choice of `EngineOptions.cpu_isa`; empty: the best that this machine runs."""
    rows_max: int = 512
    """Rows of a step. Scratch memory grows with it; prefill is faster with more, up to a few hundred."""
    sequences_max: int = 64
    """Sequences of a step."""


def scratch_bytes(program: Program, options: NativeOptions) -> int:
    """At most so much memory does an executor use beside weights and pages, known before it is built.

    Buffers of rows_max rows; quantised and float32 rows of the widest matmul; logits of 16 rows, a sampler and the
    scores and pages of an attention tile per thread, and 4 MiB of partial attention; a fixed allowance for what does
    not grow with the model.
    """
    compiled = compile_program(program)
    sources = [phase.source for phase in compiled.phases if isinstance(phase, Matmuls | Logits)]
    inputs_max = max(compiled.widths[value] for source in sources for value in source.values)
    buffers = sum(width + 31 for width in compiled.slot_widths) * 4
    angles = 8 * program.cache.head_size
    per_row = buffers + angles + (4 + 3) * inputs_max
    per_thread = 8 * inputs_max + 20 * program.vocabulary_size + _attention_bytes(compiled, program.cache)
    return (
        options.rows_max * per_row
        + 16 * 4 * program.vocabulary_size
        + options.threads * per_thread
        + (4 << 20)
        + (options.threads << 18)
    )


def _attention_bytes(compiled: CompiledProgram, shape: CacheShape) -> int:
    """Of one thread: queries, two results and the scores of a tile, and a chunk of float32 keys or values."""
    groups = [phase.heads // shape.key_value_heads for phase in compiled.phases if isinstance(phase, Attention)]
    rows, chunk = max([ATTENTION_ROWS, *groups]), 256
    return rows * 4 * (3 * shape.head_size + chunk + 32) + chunk * shape.head_size * 4


class NativeExecutor:
    """Runs steps of one program over one model and one pool of pages.

    Lifetime: keeps the mapped tensors and the pool's buffer alive. One step at a time; `abort` from any thread.
    """

    def __init__(self, program: Program, model: MappedModel, cache: PageMemory, options: NativeOptions) -> None:
        self.program = program
        self.options = options
        self.model = model
        self.cache = cache
        self._executor = _Builder(program, model, cache, options).build()

    @property
    def isa(self) -> str:
        """Name of the kernels in use."""
        return self._executor.isa

    @property
    def workspace_bytes(self) -> int:
        """Memory beside weights and pages: buffers of rows_max rows, scratch of each thread."""
        return self._executor.workspace_bytes

    def step(self, plan: StepPlan) -> StepResult | None:
        """Runs a step and chooses a token for each output row; None when `abort` ended it.

        After None, the pages of the step's positions hold nothing that may be used.

        Raises: AssertionError for a plan that names what does not exist; IntegrityError where the model's file was
        truncated or overwritten, and the result may come of it.
        """
        rows = len(plan.output_rows)
        top = int(plan.samplers["top_logprobs"].max()) if rows else 0
        result = StepResult(
            token=np.empty(rows, np.int32),
            logprob=np.empty(rows, np.float32),
            status=np.empty(rows, np.uint8),
            top_ids=np.zeros((rows, top), np.int32),
            top_logprobs=np.zeros((rows, top), np.float32),
        )
        completed = self._executor.step(
            _native_plan(plan), result.token, result.logprob, result.status, result.top_ids, result.top_logprobs
        )
        self.model.check()
        return result if completed else None

    def logits(self, plan: StepPlan) -> NDArray[np.float32] | None:
        """Runs a step and returns the logits [R, V] of its output rows, unsampled; None when `abort` ended it."""
        logits = np.empty((len(plan.output_rows), self.program.vocabulary_size), np.float32)
        return logits if self._executor.logits(_native_plan(plan), logits) else None

    def abort(self) -> None:
        """Ends the step that runs now, or else the next one, at its next layer."""
        self._executor.abort()


def _native_plan(plan: StepPlan) -> _kernels.Plan:
    lists = _kernels.PlanLists(plan.window, plan.bias_ids, plan.bias_values, plan.masks)
    return _kernels.Plan(
        plan.tokens,
        plan.positions,
        plan.row_begin,
        plan.page_tables,
        plan.output_rows,
        plan.samplers.view(np.uint8),
        lists,
    )


class _Builder:
    """Hands a compiled program to native code, phase by phase."""

    def __init__(self, program: Program, model: MappedModel, cache: PageMemory, options: NativeOptions) -> None:
        self.model = model
        self.program = program
        self.compiled: CompiledProgram = compile_program(program)
        assert cache.layout.shape == program.cache, "the pages are another model's"
        heads = {phase.heads for phase in self.compiled.phases if isinstance(phase, Attention)}
        assert len(heads) == 1, f"layers differ in their number of heads: {sorted(heads)}"
        self.native = _kernels.Executor(
            isa=select_instruction_set(options.isa),
            threads=options.threads,
            slot_widths=list(self.compiled.slot_widths),
            rows_max=options.rows_max,
            sequences_max=options.sequences_max,
            output_rows_max=options.rows_max,
            vocabulary=program.vocabulary_size,
            context_length=program.context_length,
            cache=cache.buffer,
            cache_type=int(cache.layout.cache_type),
            pages=cache.pages_total,
            layers=program.cache.layers,
            heads=heads.pop(),
            key_value_heads=program.cache.key_value_heads,
            head_size=program.cache.head_size,
        )

    def build(self) -> _kernels.Executor:
        """The executor, ready for steps."""
        for phase, layer in zip(self.compiled.phases, self.compiled.layers, strict=True):
            self._add(phase, layer)
        self.native.finish()
        return self.native

    def _add(self, phase: Phase, layer: int) -> None:
        native = self.native
        match phase:
            case Embed():
                native.add_embed(layer, self._matrix(phase.weight), self._slot(phase.output))
            case Norm():
                weight, output = self._vector(phase.weight), self._slot(phase.output)
                native.add_norm(layer, weight, phase.epsilon, self._slot(phase.input), output)
            case GatedActivation():
                slots = self._slot(phase.gate), self._slot(phase.up), self._slot(phase.output)
                native.add_gated_activation(layer, self._width(phase.output), *slots)
            case Add():
                slots = self._slot(phase.a), self._slot(phase.b), self._slot(phase.output)
                native.add_add(layer, self._width(phase.output), *slots)
            case Matmuls():
                native.add_matmuls(layer, self._source(phase.source), self._matmuls(phase))
            case Attention():
                native.add_attention(
                    layer,
                    phase.cache_layer,
                    phase.scale,
                    EVERYTHING if phase.window is None else min(phase.window, EVERYTHING),
                    phase.softcap or 0.0,
                    self._optional_vector(phase.sinks),
                    self._slot(phase.q),
                    self._slot(phase.k),
                    self._slot(phase.v),
                    self._slot(phase.output),
                    self._rotation(phase.q_rotation),
                    self._rotation(phase.k_rotation),
                )
            case Logits():
                # A file may pad its last matrix: rows beyond the vocabulary name no token.
                weights = native.first_rows(self._matrix(phase.weight), self.program.vocabulary_size)
                native.set_logits(self._source(phase.source), weights, self._optional_vector(phase.bias))

    def _matmuls(self, phase: Matmuls) -> list[_kernels.Matmul]:
        return [
            self.native.matmul(
                self._matrix(target.weight),
                self._optional_vector(target.bias),
                self._slot(target.output),
                target.accumulate,
            )
            for target in phase.targets
        ]

    def _source(self, source: RowSource) -> _kernels.RowSource:
        slots = [self._slot(value) for value in source.values]
        match source.kind:
            case "plain":
                return self.native.plain_rows(slots[0])
            case "norm":
                return self.native.norm_rows(slots[0], self._vector(source.weight), source.epsilon)
            case "gated":
                return self.native.gated_rows(slots[0], slots[1])

    def _rotation(self, rotation: Rotation | None) -> _kernels.Rotation:
        if rotation is None:
            return _kernels.Rotation()
        factors = self._optional_vector(rotation.factors)
        table = self.native.rope_table(rotation.dimensions, rotation.base, rotation.scale, factors)
        return self.native.rotation(table, rotation.style == "halves")

    def _slot(self, value: int) -> int:
        return self.compiled.slots[value]

    def _width(self, value: int) -> int:
        return self.compiled.widths[value]

    def _matrix(self, name: str) -> _kernels.Weights:
        tensor = self.model.tensors[name]
        columns, rows = tensor.info.shape
        return self.native.weights(tensor.view, tensor.info.type.id, rows, columns)

    def _optional_vector(self, name: str | None) -> NDArray[np.float32] | None:
        return None if name is None else self._vector(name)

    def _vector(self, name: str) -> NDArray[np.float32]:
        """A vector of float32: the mapped bytes themselves where they are that, as they nearly always are."""
        tensor = self.model.tensors[name]
        match tensor.info.type.name:
            case "F32":
                return np.require(tensor.view.view(np.float32), requirements=["C", "A"])
            case "F16":
                return tensor.view.view(np.float16).astype(np.float32)
            case "BF16":
                return (tensor.view.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        raise AssertionError(f"{name} is a vector of {tensor.info.type.name}")
