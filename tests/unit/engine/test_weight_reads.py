"""What a step reads of the weights follows from the Program."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.engine.program import CacheShape, Op, Program, ProgramBuilder
from magnitude_service.engine.weight_reads import weight_bytes_per_step


@dataclass(frozen=True)
class Tensor:
    nbytes: int


TENSORS = {"embedding": Tensor(1_000), "norm": Tensor(10), "gate": Tensor(200), "bias": Tensor(3)}


def recorded(output: str) -> Program:
    builder = ProgramBuilder()
    x = builder.add(Op.EMBED, (), "x", 4, "embedding")
    x = builder.add(Op.NORM, (x,), "x", 4, "norm", epsilon=1e-5)
    x = builder.add(Op.MATMUL, (x,), "x", 4, "gate", "bias")
    builder.add(Op.LOGITS, (x,), "logits", 8, output)
    return Program("made", 8, 16, CacheShape(1, 1, 4), builder.buffers, tuple(builder.instructions))


def test_every_weight_is_read_once_and_an_embedding_is_looked_up() -> None:
    assert weight_bytes_per_step(recorded("gate"), TENSORS) == 10 + 200 + 3


def test_an_embedding_that_gives_the_logits_too_is_read_whole() -> None:
    assert weight_bytes_per_step(recorded("embedding"), TENSORS) == 10 + 200 + 3 + 1_000


def test_an_op_that_reads_a_part_of_its_weights_leaves_nothing_to_say() -> None:
    program = recorded("gate")
    strange = ProgramBuilder()
    strange.add(Op.GATED_ACTIVATION, ("x", "x"), "x", 4, "gate")
    both = Program("made", 8, 16, program.cache, program.buffers, (*program.instructions, *strange.instructions))
    assert weight_bytes_per_step(both, TENSORS) == 0
