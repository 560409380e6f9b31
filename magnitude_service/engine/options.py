"""What an operator may say about computing. Imports nothing that costs time."""

from __future__ import annotations

from dataclasses import dataclass, fields

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class EngineOptions(Options):
    """How a Program is run. None of these changes a bit of any result."""

    threads: int | None = option(
        None, "Threads that compute. Absent: what the processor quota and affinity allow.", minimum=1, maximum=1024
    )
    cpu_isa: str = option(
        "",
        "Instruction set of the kernels; empty: the best that this machine runs, amx excepted, which was never timed.",
        choices=("", "scalar", "avx2", "avx_vnni", "avx512", "amx", "neon", "neon_i8mm"),
    )


ARITHMETIC_EDITION = 2
"""Of what kernels/csrc/ops.h says a result is: raised with every change of it that changes a bit. Sessions name it."""


def _native_instruction_sets() -> frozenset[str]:
    [setting] = [field for field in fields(EngineOptions) if field.name == "cpu_isa"]
    return frozenset(setting.metadata["choices"]) - {""}


def computed_by(name: str) -> str:
    """What a session names as the source of its pages: an instruction set of ours with the edition of the arithmetic,
    "avx2/2"; another arithmetic (the reference executor's) by its name."""
    return f"{name}/{ARITHMETIC_EDITION}" if name in _native_instruction_sets() else name


def equal_sources(name: str) -> frozenset[str]:
    """What computes the same bits as the instruction set `name`, as `computed_by` names it: all that `cpu_isa` offers,
    since it changes none; of another arithmetic itself alone."""
    native = _native_instruction_sets()
    return frozenset(map(computed_by, native if name in native else {name}))
