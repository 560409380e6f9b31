"""Programs that are wrong in one attribute: each must turn a golden test red, or the test would prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from magnitude_service.engine.program import Attribute, Instruction, Op, Program


def change(program: Program, op: Op, **attributes: Callable[[Attribute], Attribute]) -> Program:
    """The program with attributes of every instruction of a kind changed; there must be such instructions."""
    changed = [
        replace(
            instruction,
            attributes={**instruction.attributes, **{k: f(instruction.attributes[k]) for k, f in attributes.items()}},
        )
        if instruction.op is op
        else instruction
        for instruction in program.instructions
    ]
    assert tuple(changed) != program.instructions, f"the program has no {op} with {', '.join(attributes)}"
    return replace(program, instructions=tuple(changed))


def drop_weights(program: Program, op: Op, is_dropped: Callable[[str], bool]) -> Program:
    """The program without some optional weights of every instruction of a kind."""

    def keep(instruction: Instruction) -> tuple[str, ...]:
        return tuple(name for name in instruction.weights if instruction.op is not op or not is_dropped(name))

    changed = tuple(replace(instruction, weights=keep(instruction)) for instruction in program.instructions)
    assert changed != program.instructions, f"no {op} has such a weight"
    return replace(program, instructions=changed)


def regroup_heads(program: Program) -> Program:
    """Twice as many heads of half the size: the same bytes, grouped otherwise."""
    cache = replace(
        program.cache,
        key_value_heads=2 * program.cache.key_value_heads,
        head_size=program.cache.head_size // 2,
    )
    changed = change(
        program,
        Op.ATTENTION,
        heads=lambda heads: 2 * int(heads),
        key_value_heads=lambda heads: 2 * int(heads),
        head_size=lambda size: int(size) // 2,
    )
    return replace(changed, cache=cache)


def halve_heads(program: Program) -> Program:
    """As `regroup_heads`, and the rotation goes by the smaller heads too: native code wants it within a head."""
    changed = change(
        program,
        Op.ROPE,
        heads=lambda heads: 2 * int(heads),
        head_size=lambda size: int(size) // 2,
        dimensions=lambda dimensions: int(dimensions) // 2,
    )
    return regroup_heads(changed)


def read_output(program: Program, name: str) -> Program:
    """The logits come of another matrix."""
    changed = tuple(
        replace(instruction, weights=(name, *instruction.weights[1:])) if instruction.op is Op.LOGITS else instruction
        for instruction in program.instructions
    )
    assert changed != program.instructions, f"the logits come of {name} already"
    return replace(program, instructions=changed)


def rotate_less(program: Program) -> Program:
    """Two dimensions of each head are left as they are."""
    return change(program, Op.ROPE, dimensions=lambda dimensions: int(dimensions) - 2)


def drop_bias(program: Program, letter: str) -> Program:
    """Queries, keys or values without their bias: `letter` is q, k or v."""
    return drop_weights(program, Op.MATMUL, lambda weight: weight.endswith(f"attn_{letter}.bias"))


EVERYWHERE: Mapping[str, Callable[[Program], Program]] = {
    "rope base": lambda program: change(program, Op.ROPE, base=lambda base: 0.9 * float(base)),
    "rope scale": lambda program: change(program, Op.ROPE, scale=lambda scale: 1.1 * float(scale)),
    "rope style": lambda program: change(
        program, Op.ROPE, style=lambda style: "halves" if style == "pairs" else "pairs"
    ),
    "epsilon": lambda program: change(program, Op.NORM, epsilon=lambda epsilon: 10 * float(epsilon)),
    "attention scale": lambda program: change(program, Op.ATTENTION, scale=lambda scale: 1.05 * float(scale)),
    "head grouping": regroup_heads,
}
"""Mistakes that any architecture could make."""

BIASED: Mapping[str, Callable[[Program], Program]] = {
    "q bias": lambda program: drop_bias(program, "q"),
    "k bias": lambda program: drop_bias(program, "k"),
    "v bias": lambda program: drop_bias(program, "v"),
}
"""Mistakes that only an architecture with biases can make."""
