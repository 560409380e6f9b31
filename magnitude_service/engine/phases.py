"""What a Program is compiled to: phases, each of which runs between two barriers of the kernel pool.

A *value* is what one instruction writes: a buffer's name that is written in every layer stands for many values. Phases
name values by number; a compiled program says in which slot of memory each lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RowSource:
    """How the rows that a phase of matmuls reads come about: as they are, by a norm, or by a gated activation."""

    kind: Literal["plain", "norm", "gated"]
    values: tuple[int, ...]
    """The input, or gate and up."""
    weight: str = ""
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """Attributes of a ROPE instruction."""

    dimensions: int
    base: float
    scale: float
    style: str
    factors: str | None


@dataclass(frozen=True, slots=True)
class MatmulTarget:
    """One matmul of a phase. With `accumulate`, the result is added to what the value's slot holds."""

    weight: str
    bias: str | None
    output: int
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Embed:
    """output[t] = row of token t."""

    weight: str
    output: int


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm that no matmul took over."""

    weight: str
    epsilon: float
    input: int
    output: int


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """A gated activation that no matmul took over."""

    gate: int
    up: int
    output: int


@dataclass(frozen=True, slots=True)
class Add:
    """An addition that no matmul took over."""

    a: int
    b: int
    output: int


@dataclass(frozen=True, slots=True)
class Matmuls:
    """Matmuls of the same rows."""

    source: RowSource
    targets: tuple[MatmulTarget, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """Rotates q and k in place, puts k and v into the pages of a layer of the cache, and attends to them."""

    cache_layer: int
    heads: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: str | None
    q: int
    k: int
    v: int
    output: int
    q_rotation: Rotation | None
    k_rotation: Rotation | None


@dataclass(frozen=True, slots=True)
class Logits:
    """The last phase: a matmul of the output rows only."""

    source: RowSource
    weight: str
    bias: str | None


Phase = Embed | Norm | GatedActivation | Add | Matmuls | Attention | Logits


def values_of(phase: Phase) -> tuple[int, ...]:
    """Every value that a phase reads or writes."""
    match phase:
        case Embed():
            return (phase.output,)
        case Norm():
            return phase.input, phase.output
        case GatedActivation():
            return phase.gate, phase.up, phase.output
        case Add():
            return phase.a, phase.b, phase.output
        case Matmuls():
            return *phase.source.values, *(target.output for target in phase.targets)
        case Attention():
            return phase.q, phase.k, phase.v, phase.output
        case Logits():
            return phase.source.values
