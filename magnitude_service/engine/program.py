"""A model is a Program: an ordered list of instructions over named buffers.

An architecture records it once; the executors, the memory estimate, the prefetch order and the
tensor-access trace are all read off it. Letters of shapes: T tokens of a step, E embedding, H heads,
K key/value heads, D head size, F feed-forward, V vocabulary.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

Attribute = int | float | str | bool


class Op(enum.StrEnum):
    """What an instruction computes. Every buffer is float32 [T, width] unless said otherwise."""

    EMBED = "embed"
    """out[t] = row token[t] of weights[0] (V×E), dequantised. No inputs."""
    NORM = "norm"
    """out = x / sqrt(mean(x²) + epsilon) · weights[0] (RMS). Attributes: epsilon."""
    MATMUL = "matmul"
    """out = x · weights[0]ᵀ (+ weights[1], a bias)."""
    ROPE = "rope"
    """Rotates the first `dimensions` of every head by position. Attributes: heads, head_size, dimensions, base,
    style ("pairs": (2i, 2i+1), or "halves": (i, i+dimensions/2)), scale (position divisor);
    weights[0], optional: frequency factors [dimensions/2], which divide the angle."""
    ATTENTION = "attention"
    """Inputs q [T,H·D], k [T,K·D], v [T,K·D]: appends k and v to the sequence's pages, then causal softmax attention
    over them. Attributes: heads, key_value_heads, head_size, scale; optional: window (a row sees so many positions, its
    own included), softcap (scores become softcap · tanh(score / softcap)). weights[0], optional: sinks [H], a logit per
    head that joins the softmax without a value."""
    GATED_ACTIVATION = "gated_activation"
    """out = f(gate) · up; inputs gate, up. Attributes: activation ("silu")."""
    ADD = "add"
    """out = a + b."""
    LOGITS = "logits"
    """As MATMUL, but only for the step's output rows and the first V rows of weights[0]: out [R,V]."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation. `weights` are tensor names of the file, `layer` is absent outside the layers."""

    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    layer: int | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token costs in the key/value cache: K and V of K heads of D elements in each of L layers."""

    layers: int
    key_value_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Program:
    """An architecture's forward pass over one model. `buffers` maps a name to its width in float32 per row.

    `vocabulary_size` counts the ids that a tokenizer knows; matrices may have more rows. `unused` are tensors of the
    file that no instruction reads.
    """

    architecture: str
    vocabulary_size: int
    context_length: int
    cache: CacheShape
    buffers: Mapping[str, int]
    instructions: tuple[Instruction, ...]
    unused: tuple[str, ...] = ()


class ProgramBuilder:
    """Records instructions in order and knows the width of every buffer; architectures use nothing else."""

    def __init__(self) -> None:
        self.buffers: dict[str, int] = {}
        self.instructions: list[Instruction] = []

    def add(
        self,
        op: Op,
        inputs: tuple[str, ...],
        output: str,
        width: int,
        *weights: str,
        layer: int | None = None,
        **attributes: Attribute,
    ) -> str:
        """Appends one instruction and returns the name of its output. A buffer keeps one width for good."""
        known = self.buffers.setdefault(output, width)
        assert known == width, f"buffer {output} is {known} wide, not {width}"
        self.instructions.append(Instruction(op, inputs, (output,), weights, layer, attributes))
        return output
