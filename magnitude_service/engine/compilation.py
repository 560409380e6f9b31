"""Compiles a Program into phases: what the native executor does between two barriers, and in which buffers.

Nothing is computed differently from the Program; work is only put together, so that fewer barriers and fewer passes
over memory are needed:

- matmuls of the same input (q, k and v; gate and up) are one phase;
- a norm or a gated activation whose result only such a phase reads becomes its row source;
- an addition to a matmul's result becomes the matmul's accumulation;
- rotations, and the storing of keys and values, are part of attention.

Values (see engine/phases.py) that are never needed at the same time share a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnitude_service.engine.phases import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Logits,
    Matmuls,
    MatmulTarget,
    Norm,
    Phase,
    Rotation,
    RowSource,
    values_of,
)
from magnitude_service.engine.program import Attribute, Instruction, Op, Program


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """Phases in order with their layers, slot and width of every value, and the width of every slot. Widths are in
    float32 per row.

    `layers` holds the number of layers for phases outside any layer.
    """

    phases: tuple[Phase, ...]
    layers: tuple[int, ...]
    slots: dict[int, int]
    widths: tuple[int, ...]
    slot_widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Numbered:
    """An instruction with its buffers as values."""

    instruction: Instruction
    inputs: tuple[int, ...]
    output: int


def compile_program(program: Program) -> CompiledProgram:
    """Phases and slots of a program.

    Raises: AssertionError, where an architecture records what the executor does not run.
    """
    compiler = _Compiler(program)
    compiler.compile()
    return compiler.result()


class _Compiler:
    """One pass over the numbered instructions; `at` is the next one that no phase has taken."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.widths: list[int] = []
        """Per value."""
        self.numbered: list[_Numbered] = []
        self.readers: list[list[int]] = []
        """Per value: indices of the instructions that read it."""
        self.root: list[int] = []
        """Per value: the value whose slot it shares, because it is computed in place."""
        self.phases: list[Phase] = []
        self.layers: list[int] = []
        self.cache_layers = 0
        self.at = 0
        self._number()

    def compile(self) -> None:
        """Takes instructions until none is left."""
        take = {
            Op.EMBED: self._take_embed,
            Op.NORM: self._take_norm,
            Op.GATED_ACTIVATION: self._take_gated_activation,
            Op.MATMUL: self._take_plain_matmuls,
            Op.LOGITS: self._take_plain_matmuls,
            Op.ROPE: self._take_attention,
            Op.ATTENTION: self._take_attention,
            Op.ADD: self._take_add,
        }
        while self.at < len(self.numbered):
            op = self.numbered[self.at].instruction.op
            assert op in take, f"the native executor does not know {op}"
            take[op]()
        assert any(isinstance(phase, Logits) for phase in self.phases[-1:]), "a program ends with its logits"

    def result(self) -> CompiledProgram:
        """What was compiled, with slots for all values."""
        slots, widths = self._place()
        return CompiledProgram(tuple(self.phases), tuple(self.layers), slots, tuple(self.widths), widths)

    def _number(self) -> None:
        current: dict[str, int] = {}
        for index, instruction in enumerate(self.program.instructions):
            inputs = tuple(current[name] for name in instruction.inputs)
            for value in inputs:
                self.readers[value].append(index)
            (name,) = instruction.outputs
            current[name] = len(self.widths)
            self.numbered.append(_Numbered(instruction, inputs, current[name]))
            self.root.append(len(self.widths))
            self.widths.append(self.program.buffers[name])
            self.readers.append([])

    def _emit(self, phase: Phase, instruction: Instruction) -> None:
        assert not self.phases or not isinstance(self.phases[-1], Logits), "nothing follows the logits"
        self.phases.append(phase)
        layer = instruction.layer
        self.layers.append(self.program.cache.layers if layer is None else layer)

    def _take_embed(self) -> None:
        numbered = self._next()
        self._emit(Embed(numbered.instruction.weights[0], numbered.output), numbered.instruction)

    def _take_norm(self) -> None:
        norm = self._next()
        weight, epsilon = norm.instruction.weights[0], float(norm.instruction.attributes["epsilon"])
        if self._only_matmuls_read(norm.output):
            self._take_matmuls(RowSource("norm", norm.inputs, weight, epsilon))
        else:
            self._emit(Norm(weight, epsilon, norm.inputs[0], norm.output), norm.instruction)

    def _take_gated_activation(self) -> None:
        gated = self._next()
        activation = gated.instruction.attributes["activation"]
        assert activation == "silu", f"the native executor does not know the activation {activation}"
        if self._only_matmuls_read(gated.output):
            self._take_matmuls(RowSource("gated", gated.inputs))
        else:
            gate, up = gated.inputs
            self._emit(GatedActivation(gate, up, gated.output), gated.instruction)

    def _take_add(self) -> None:
        add = self._next()
        a, b = add.inputs
        self._emit(Add(a, b, add.output), add.instruction)

    def _take_plain_matmuls(self) -> None:
        self._take_matmuls(RowSource("plain", self.numbered[self.at].inputs))

    def _take_matmuls(self, source: RowSource) -> None:
        """Takes the run of matmuls that starts here, or the logits."""
        first = self.numbered[self.at]
        run = self._matmul_run(first.inputs[0])
        self.at += len(run)
        if first.instruction.op is Op.LOGITS:
            weight, bias = _weight_and_bias(first.instruction)
            self._emit(Logits(source, weight, bias), first.instruction)
            return
        targets = [MatmulTarget(*_weight_and_bias(n.instruction), n.output, accumulate=False) for n in run]
        if len(run) == 1 and self._takes_addition(first.output, source):
            add = self._next()
            (base,) = (value for value in add.inputs if value != first.output)
            self.root[first.output] = self.root[add.output] = self.root[base]
            targets = [MatmulTarget(targets[0].weight, targets[0].bias, add.output, accumulate=True)]
        self._emit(Matmuls(source, tuple(targets)), first.instruction)

    def _takes_addition(self, product: int, source: RowSource) -> bool:
        """Whether the next instruction adds a matmul's result to a value that nobody needs afterwards."""
        if self.at == len(self.numbered) or self.readers[product] != [self.at]:
            return False
        add = self.numbered[self.at]
        others = [value for value in add.inputs if value != product]
        if add.instruction.op is not Op.ADD or len(others) != 1:
            return False
        return max(self.readers[others[0]]) == self.at and not self._share_slot(others[0], source.values)

    def _share_slot(self, value: int, values: tuple[int, ...]) -> bool:
        return any(self.root[value] == self.root[other] for other in values)

    def _take_attention(self) -> None:
        """Takes the rotations that lead to an attention, and the attention."""
        rotations: dict[int, Rotation] = {}
        while self.numbered[self.at].instruction.op is Op.ROPE:
            rope = self._next()
            assert self.readers[rope.inputs[0]] == [self.at - 1], "a value is needed after its rotation in place"
            self.root[rope.output] = self.root[rope.inputs[0]]
            rotations[rope.output] = _rotation(rope.instruction)
        attention = self._next()
        attributes = attention.instruction.attributes
        assert attention.instruction.op is Op.ATTENTION, "a rotation leads to an attention"
        q, k, v = attention.inputs
        assert rotations.keys() <= {q, k}, "a rotation leads to the queries or keys of the next attention"
        phase = Attention(
            cache_layer=self.cache_layers,
            heads=int(attributes["heads"]),
            scale=float(attributes["scale"]),
            window=_window(attributes),
            softcap=_softcap(attributes),
            sinks=attention.instruction.weights[0] if attention.instruction.weights else None,
            q=q,
            k=k,
            v=v,
            output=attention.output,
            q_rotation=rotations.get(q),
            k_rotation=rotations.get(k),
        )
        self._emit(phase, attention.instruction)
        self.cache_layers += 1

    def _next(self) -> _Numbered:
        self.at += 1
        return self.numbered[self.at - 1]

    def _matmul_run(self, value: int) -> list[_Numbered]:
        """The matmuls of `value` that follow each other from here on; logits stand alone."""
        run: list[_Numbered] = []
        for numbered in self.numbered[self.at :]:
            op = numbered.instruction.op
            if op not in (Op.MATMUL, Op.LOGITS) or numbered.inputs[0] != value or (run and op is Op.LOGITS):
                break
            run.append(numbered)
            if op is Op.LOGITS:
                break
        return run

    def _only_matmuls_read(self, value: int) -> bool:
        run = self._matmul_run(value)
        return bool(run) and len(run) == len(self.readers[value])

    def _place(self) -> tuple[dict[int, int], tuple[int, ...]]:
        """Slots by first fit over the phases: a value's slot is free again after the last phase that reads it."""
        last_use: dict[int, int] = {}
        width: dict[int, int] = {}
        for index, phase in enumerate(self.phases):
            for value in values_of(phase):
                root = self.root[value]
                last_use[root] = index
                width[root] = max(width.get(root, 0), self.widths[value])
        slot_of_root: dict[int, int] = {}
        slot_widths: list[int] = []
        free: set[int] = set()
        for index, phase in enumerate(self.phases):
            for root in dict.fromkeys(self.root[value] for value in values_of(phase)):
                if root not in slot_of_root:
                    slot_of_root[root] = _choose_slot(free, slot_widths, width[root])
            free |= {slot_of_root[root] for root, last in last_use.items() if last == index}
        values = {value for phase in self.phases for value in values_of(phase)}
        return {value: slot_of_root[self.root[value]] for value in values}, tuple(slot_widths)


def _choose_slot(free: set[int], slot_widths: list[int], width: int) -> int:
    """Takes the narrowest free slot that is wide enough, else widens the widest, else adds one."""
    fitting = [slot for slot in free if slot_widths[slot] >= width]
    if fitting:
        slot = min(fitting, key=lambda slot: (slot_widths[slot], slot))
    elif free:
        slot = max(free, key=lambda slot: (slot_widths[slot], slot))
        slot_widths[slot] = width
    else:
        slot_widths.append(width)
        return len(slot_widths) - 1
    free.remove(slot)
    return slot


def _weight_and_bias(instruction: Instruction) -> tuple[str, str | None]:
    weight, *bias = instruction.weights
    return weight, bias[0] if bias else None


def _window(attributes: Mapping[str, Attribute]) -> int | None:
    if "window" not in attributes:
        return None
    window = int(attributes["window"])
    assert window >= 1, f"a window of {window} positions shows nothing"
    return window


def _softcap(attributes: Mapping[str, Attribute]) -> float | None:
    if "softcap" not in attributes:
        return None
    softcap = float(attributes["softcap"])
    assert softcap > 0, f"a soft cap of {softcap} is no bound"
    return softcap


def _rotation(instruction: Instruction) -> Rotation:
    attributes = instruction.attributes
    style = str(attributes["style"])
    assert style in ("pairs", "halves"), f"the native executor does not know the rotation style {style}"
    return Rotation(
        dimensions=int(attributes["dimensions"]),
        base=float(attributes["base"]),
        scale=float(attributes.get("scale", 1.0)),
        style=style,
        factors=instruction.weights[0] if instruction.weights else None,
    )
