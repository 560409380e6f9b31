"""What a step reads of the weights, read off the Program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from magnitude_service.engine.program import Op, Program

WHOLE = frozenset({Op.NORM, Op.MATMUL, Op.ROPE, Op.LOGITS})
"""Ops that read all of their weights; EMBED looks up a row per token, which counts for nothing."""


class Tensor(Protocol):
    """A tensor of the file, as far as its size is concerned."""

    @property
    def nbytes(self) -> int: ...


def weight_bytes_per_step(program: Program, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of weights that a step reads which chooses a token, each once; 0 where an op reads only a part of its
    weights, so that nobody can say."""
    names: set[str] = set()
    for instruction in program.instructions:
        if instruction.op in WHOLE:
            names.update(instruction.weights)
        elif instruction.weights and instruction.op is not Op.EMBED:
            return 0
    return sum(tensors[name].nbytes for name in names)
