"""The reference executor: a Program step by step in NumPy, float32, on weights that the `gguf` package dequantises.

Slow and plain on purpose: it is the oracle of every other path, so that nothing is fused, reordered or clever. It
reads and writes the same pages as the native executor. NumPy may add up a row in another order when other rows stand
beside it: its last bits depend on the company, which the native executor's never do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from magnitude_service.engine.batch import PAGE_TOKENS, StepPlan, StepResult
from magnitude_service.engine.cache_layout import PageMemory
from magnitude_service.engine.program import Instruction, Op, Program
from magnitude_service.engine.sampling import choose
from magnitude_service.errors import PreconditionError

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel

Float32 = NDArray[np.float32]

WEIGHTS_KEPT_BYTES = 1 << 30
"""Dequantised weights that are kept for the next step; what is beyond is dequantised again each time."""


class ReferenceExecutor:
    """Runs steps of one program, with the interface of `NativeExecutor`.

    Raises: PreconditionError, where the `gguf` package is not installed.
    """

    def __init__(self, program: Program, model: MappedModel, cache: PageMemory) -> None:
        assert cache.layout.shape == program.cache, "the pages are another model's"
        self.program = program
        self.model = model
        self.cache = cache
        self._weights = _Weights(model)
        self._aborted = threading.Event()

    def step(self, plan: StepPlan) -> StepResult | None:
        """Runs a step and chooses a token for each output row; None when `abort` ended it.

        Raises: IntegrityError where the model's file was truncated or overwritten.
        """
        logits = self.logits(plan)
        return None if logits is None else choose(logits, plan)

    def logits(self, plan: StepPlan) -> Float32 | None:
        """Runs a step and returns the logits [R, V] of its output rows, unsampled; None when `abort` ended it."""
        step = _Step(self.program, self._weights, self.cache, plan)
        with np.errstate(all="ignore"):  # what is not finite shows in the logits, and fails its own row there
            for instruction in self.program.instructions:
                if self._aborted.is_set():
                    self._aborted.clear()
                    return None
                step.run(instruction)
        self.model.check()
        return step.buffers["logits"]

    def abort(self) -> None:
        """Ends the step that runs now, or else the next one, at its next instruction; from any thread."""
        self._aborted.set()


class _Weights:
    """Dequantised tensors, as many as WEIGHTS_KEPT_BYTES hold."""

    def __init__(self, model: MappedModel) -> None:
        self._model = model
        self._gguf = _import_gguf()
        self._kept: dict[str, Float32] = {}
        self._kept_bytes = 0

    def whole(self, name: str) -> Float32:
        """A tensor, float32: [N, K] of a matrix, [1, N] of a vector."""
        if name in self._kept:
            return self._kept[name]
        values = self._dequantised(name, self._rows(name))
        if self._kept_bytes + values.nbytes <= WEIGHTS_KEPT_BYTES:
            self._kept[name] = values
            self._kept_bytes += values.nbytes
        return values

    def rows(self, name: str, indices: NDArray[np.int32]) -> Float32:
        """Some rows of a matrix."""
        return self._dequantised(name, self._rows(name)[indices])

    def _rows(self, name: str) -> NDArray[np.uint8]:
        tensor = self._model.tensors[name]
        return tensor.view.reshape(-1, tensor.info.row_bytes)

    def _dequantised(self, name: str, rows: NDArray[np.uint8]) -> Float32:
        kind = self._gguf.GGMLQuantizationType(self._model.tensors[name].info.type.id)
        values: Float32 = self._gguf.quants.dequantize(np.ascontiguousarray(rows), kind)
        return values


def _import_gguf() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise PreconditionError(
            "The reference executor needs the package gguf, which is not installed.",
            remedy="Run `pip install gguf==0.19.0`, or use the native executor.",
            reason="MISSING_PACKAGE",
        ) from error
    return gguf


class _Step:
    """The buffers of one step. Shapes: each [T, width], the logits [R, V]."""

    def __init__(self, program: Program, weights: _Weights, cache: PageMemory, plan: StepPlan) -> None:
        self.program = program
        self.weights = weights
        self.cache = cache
        self.plan = plan
        self.buffers: dict[str, Float32] = {}

    def run(self, instruction: Instruction) -> None:
        """Computes one instruction's output from its inputs."""
        methods: dict[Op, Callable[..., Float32]] = {
            Op.EMBED: self._embed,
            Op.NORM: self._norm,
            Op.MATMUL: self._matmul,
            Op.ROPE: self._rope,
            Op.ATTENTION: self._attention,
            Op.GATED_ACTIVATION: self._gated_activation,
            Op.ADD: self._add,
            Op.LOGITS: self._logits,
        }
        (output,) = instruction.outputs
        result = methods[instruction.op](instruction, *(self.buffers[name] for name in instruction.inputs))
        assert result.shape[1] == self.program.buffers[output], f"{instruction.op} gives {result.shape} for {output}"
        self.buffers[output] = result

    def _embed(self, instruction: Instruction) -> Float32:
        return self.weights.rows(instruction.weights[0], self.plan.tokens)

    def _norm(self, instruction: Instruction, x: Float32) -> Float32:
        epsilon = np.float32(instruction.attributes["epsilon"])
        mean = np.mean(np.square(x), axis=1, keepdims=True)
        normed: Float32 = x / np.sqrt(mean + epsilon) * self.weights.whole(instruction.weights[0])
        return normed

    def _matmul(self, instruction: Instruction, x: Float32) -> Float32:
        weight, *bias = (self.weights.whole(name) for name in instruction.weights)
        return x @ weight.T + bias[0] if bias else x @ weight.T

    def _rope(self, instruction: Instruction, x: Float32) -> Float32:
        attributes = instruction.attributes
        dimensions, heads = int(attributes["dimensions"]), int(attributes["heads"])
        pair = np.arange(dimensions // 2)
        frequencies = float(attributes["base"]) ** (-2.0 * pair / dimensions) / float(attributes["scale"])
        if instruction.weights:
            frequencies = frequencies / self.weights.whole(instruction.weights[0])[0]
        angles = self.plan.positions[:, None, None] * frequencies  # [T, 1, dimensions/2], float64
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        if attributes["style"] == "pairs":
            first, second = 2 * pair, 2 * pair + 1
        else:
            assert attributes["style"] == "halves", f"no rotation is called {attributes['style']}"
            first, second = pair, pair + dimensions // 2
        rotated = x.reshape(len(x), heads, -1).copy()
        a, b = rotated[..., first], rotated[..., second]
        rotated[..., first], rotated[..., second] = a * cosine - b * sine, a * sine + b * cosine
        return rotated.reshape(x.shape)

    def _attention(self, instruction: Instruction, q: Float32, k: Float32, v: Float32) -> Float32:
        attributes = instruction.attributes
        heads, groups = int(attributes["heads"]), int(attributes["key_value_heads"])
        assert instruction.layer is not None, "attention has a layer"
        layout, buffer = self.cache.layout, self.cache.buffer
        scale, size = np.float32(attributes["scale"]), int(attributes["head_size"])
        result = np.empty_like(q)
        for rows, table in self._sequences():
            positions = self.plan.positions[rows]
            own = table[positions // PAGE_TOKENS], positions % PAGE_TOKENS
            stored = k[rows].reshape(-1, groups, size), v[rows].reshape(-1, groups, size)
            layout.write_rows(buffer, instruction.layer, own, *stored)
            window = int(attributes.get("window", positions[-1] + 1))
            seen = np.arange(max(0, positions[0] + 1 - window), positions[-1] + 1)
            pages = table[seen // PAGE_TOKENS], seen % PAGE_TOKENS
            k_seen, v_seen = layout.read_rows(buffer, instruction.layer, pages)  # [P, K, D]
            queries = q[rows].reshape(len(positions), groups, heads // groups, size)
            scores = np.einsum("tkgd,pkd->tkgp", queries, k_seen) * scale
            if "softcap" in attributes:
                softcap = np.float32(attributes["softcap"])
                scores = softcap * np.tanh(scores / softcap)
            row = positions[:, None, None, None]
            scores[np.broadcast_to((seen > row) | (seen <= row - window), scores.shape)] = -np.inf
            weights = _softmax(scores, self._sinks(instruction, groups))
            result[rows] = np.einsum("tkgp,pkd->tkgd", weights, v_seen).reshape(len(positions), -1)
        return result

    def _sinks(self, instruction: Instruction, groups: int) -> Float32 | None:
        """A logit per query head [K, H/K, 1] that takes weight and has no value."""
        if not instruction.weights:
            return None
        return self.weights.whole(instruction.weights[0]).reshape(groups, -1, 1)

    def _sequences(self) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """The rows and the page table of each sequence."""
        begin = self.plan.row_begin
        for index, table in enumerate(self.plan.page_tables):
            yield slice(begin[index], begin[index + 1]), table

    def _gated_activation(self, instruction: Instruction, gate: Float32, up: Float32) -> Float32:
        assert instruction.attributes["activation"] == "silu", "silu is the only activation"
        product: Float32 = gate / (1 + np.exp(-gate)) * up
        return product

    def _add(self, instruction: Instruction, a: Float32, b: Float32) -> Float32:
        return a + b

    def _logits(self, instruction: Instruction, x: Float32) -> Float32:
        weight, *bias = (self.weights.whole(name) for name in instruction.weights)
        size = self.program.vocabulary_size  # a file may pad its last matrix: rows beyond name no token
        logits = x[self.plan.output_rows] @ weight[:size].T
        return logits + bias[0][:, :size] if bias else logits


def _softmax(scores: Float32, sinks: Float32 | None) -> Float32:
    """Weights of the last axis; a sink is one score more, whose weight is dropped."""
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks, (*scores.shape[:-1], 1))], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    kept: Float32 = weights if sinks is None else weights[..., :-1]
    return kept
