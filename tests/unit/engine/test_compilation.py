"""What a Program is compiled to: fused phases, and slots that no two living values share."""

from __future__ import annotations

import pytest

from magnitude_service.engine.compilation import CompiledProgram, compile_program
from magnitude_service.engine.phases import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Logits,
    Matmuls,
    Norm,
    values_of,
)
from magnitude_service.engine.program import CacheShape, Op, Program, ProgramBuilder

E, F, V, D = 64, 160, 100, 16


def program_of(builder: ProgramBuilder) -> Program:
    cache = CacheShape(layers=1, key_value_heads=2, head_size=D)
    return Program("test", V, 1024, cache, builder.buffers, tuple(builder.instructions))


def begin() -> ProgramBuilder:
    builder = ProgramBuilder()
    builder.add(Op.EMBED, (), "x", E, "embedding")
    return builder


def norm(builder: ProgramBuilder, source: str, output: str) -> None:
    builder.add(Op.NORM, (source,), output, E, f"{output}.weight", layer=0, epsilon=1e-6)


def attend(builder: ProgramBuilder, q: str, k: str, v: str) -> None:
    shape = {"head_size": D, "dimensions": D, "base": 1e4, "style": "pairs"}
    builder.add(Op.ROPE, (q,), q, 4 * D, layer=0, heads=4, **shape)
    builder.add(Op.ROPE, (k,), k, 2 * D, layer=0, heads=2, **shape)
    heads = {"heads": 4, "key_value_heads": 2, "head_size": D, "scale": 0.25}
    builder.add(Op.ATTENTION, (q, k, v), "a", 4 * D, layer=0, **heads)


def end(builder: ProgramBuilder, source: str = "x") -> CompiledProgram:
    norm(builder, source, "last")
    builder.add(Op.LOGITS, ("last",), "logits", V, "output")
    return compile_program(program_of(builder))


def layer() -> CompiledProgram:
    """The layer that llama and its kin are made of."""
    builder = begin()
    norm(builder, "x", "n")
    for name, width in (("q", 4 * D), ("k", 2 * D), ("v", 2 * D)):
        builder.add(Op.MATMUL, ("n",), name, width, f"{name}.weight", f"{name}.bias", layer=0)
    attend(builder, "q", "k", "v")
    builder.add(Op.MATMUL, ("a",), "y", E, "o.weight", layer=0)
    builder.add(Op.ADD, ("x", "y"), "x", E, layer=0)
    norm(builder, "x", "n")
    for name in ("gate", "up"):
        builder.add(Op.MATMUL, ("n",), name, F, f"{name}.weight", layer=0)
    builder.add(Op.GATED_ACTIVATION, ("gate", "up"), "act", F, layer=0, activation="silu")
    builder.add(Op.MATMUL, ("act",), "y", E, "down.weight", layer=0)
    builder.add(Op.ADD, ("y", "x"), "x", E, layer=0)
    return end(builder)


def assert_no_two_living_values_share_a_slot(compiled: CompiledProgram) -> None:
    """Follows the phases: what a phase reads must still lie in its slot."""
    written: dict[int, int] = {}
    for phase in compiled.phases:
        outputs = outputs_of(phase)
        for value in set(values_of(phase)) - outputs:
            holder = written[compiled.slots[value]]
            assert holder == value, f"{phase} reads {value}, but its slot holds {holder}"
        slots = [compiled.slots[value] for value in outputs]
        assert len(set(slots)) == len(slots), f"outputs of {phase} share a slot"
        inputs = {compiled.slots[value] for value in set(values_of(phase)) - outputs}
        assert inputs.isdisjoint(slots), f"{phase} overwrites what it reads"
        for value in outputs:
            written[compiled.slots[value]] = value
            assert compiled.slot_widths[compiled.slots[value]] >= compiled.widths[value]


def outputs_of(phase: object) -> set[int]:
    match phase:
        case Matmuls():
            return {target.output for target in phase.targets}
        case Embed() | Norm() | GatedActivation() | Add() | Attention():
            return {phase.output}
    return set()


def test_a_layer_is_five_phases() -> None:
    compiled = layer()
    kinds = [type(phase) for phase in compiled.phases]
    assert kinds == [Embed, Matmuls, Attention, Matmuls, Matmuls, Matmuls, Logits]
    projections, output, gate_up, down = (phase for phase in compiled.phases if isinstance(phase, Matmuls))
    assert [target.weight for target in projections.targets] == ["q.weight", "k.weight", "v.weight"]
    assert [target.bias for target in projections.targets] == ["q.bias", "k.bias", "v.bias"]
    assert [phase.source.kind for phase in (projections, output, gate_up, down)] == ["norm", "plain", "norm", "gated"]
    assert [target.accumulate for phase in (output, down) for target in phase.targets] == [True, True]
    assert compiled.layers == (1, 0, 0, 0, 0, 0, 1)


def test_the_residual_stays_in_one_slot_and_values_share_the_others() -> None:
    compiled = layer()
    embed, output, down = (compiled.phases[i] for i in (0, 3, 5))
    assert isinstance(embed, Embed)
    assert isinstance(output, Matmuls)
    assert isinstance(down, Matmuls)
    residual = compiled.slots[embed.output]
    assert compiled.slots[output.targets[0].output] == compiled.slots[down.targets[0].output] == residual
    assert sorted(compiled.slot_widths) == [32, 32, E, F, F]  # of x, q, k, v, a, gate and up, never all at once


def test_a_norm_that_something_else_reads_stays_a_phase() -> None:
    builder = begin()
    norm(builder, "x", "n")
    builder.add(Op.MATMUL, ("n",), "y", E, "w", layer=0)
    builder.add(Op.ADD, ("n", "y"), "x", E, layer=0)
    compiled = end(builder)
    kinds = [type(phase) for phase in compiled.phases]
    assert kinds == [Embed, Norm, Matmuls, Add, Logits]
    assert_no_two_living_values_share_a_slot(compiled)


def test_an_addition_to_what_the_same_phase_reads_stays_a_phase() -> None:
    builder = begin()
    norm(builder, "x", "n")
    builder.add(Op.MATMUL, ("n",), "y", E, "w", layer=0)
    builder.add(Op.ADD, ("x", "y"), "z", E, layer=0)
    compiled = end(builder, "z")
    assert [type(phase) for phase in compiled.phases] == [Embed, Matmuls, Add, Logits]
    assert_no_two_living_values_share_a_slot(compiled)


def test_an_addition_to_a_value_that_is_needed_later_stays_a_phase() -> None:
    builder = begin()
    norm(builder, "x", "n")
    builder.add(Op.MATMUL, ("n",), "gate", F, "gate", layer=0)
    builder.add(Op.MATMUL, ("n",), "up", F, "up", layer=0)
    builder.add(Op.GATED_ACTIVATION, ("gate", "up"), "act", F, layer=0, activation="silu")
    builder.add(Op.MATMUL, ("act",), "y", E, "down", layer=0)
    builder.add(Op.ADD, ("x", "y"), "z", E, layer=0)
    builder.add(Op.ADD, ("x", "z"), "x", E, layer=0)
    compiled = end(builder)
    assert [type(phase) for phase in compiled.phases] == [Embed, Matmuls, Matmuls, Add, Add, Logits]
    assert_no_two_living_values_share_a_slot(compiled)


def test_a_gated_activation_that_is_added_stays_a_phase() -> None:
    builder = begin()
    norm(builder, "x", "n")
    for name in ("gate", "up"):
        builder.add(Op.MATMUL, ("n",), name, E, name, layer=0)
    builder.add(Op.GATED_ACTIVATION, ("gate", "up"), "act", E, layer=0, activation="silu")
    builder.add(Op.ADD, ("x", "act"), "x", E, layer=0)
    compiled = end(builder)
    assert [type(phase) for phase in compiled.phases] == [Embed, Matmuls, GatedActivation, Add, Logits]
    assert_no_two_living_values_share_a_slot(compiled)


def test_what_the_executor_does_not_run_is_refused() -> None:
    builder = begin()
    builder.add(Op.GATED_ACTIVATION, ("x", "x"), "y", E, layer=0, activation="relu")
    with pytest.raises(AssertionError, match="activation relu"):
        end(builder)
    with pytest.raises(AssertionError, match="ends with its logits"):
        compile_program(program_of(begin()))
    builder = begin()
    builder.add(Op.ROPE, ("x",), "y", E, heads=4, head_size=D, dimensions=D, base=1e4, style="pairs")
    builder.add(Op.ADD, ("x", "y"), "x", E)
    with pytest.raises(AssertionError, match="needed after its rotation"):
        end(builder)
