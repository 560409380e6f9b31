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


def equal_instruction_sets(name: str) -> frozenset[str]:
    """The instruction sets whose results have the same bits as the named one's: all that `cpu_isa` offers, since it
    changes none; of another arithmetic (the reference executor's) itself alone."""
    [setting] = [field for field in fields(EngineOptions) if field.name == "cpu_isa"]
    native = frozenset(setting.metadata["choices"]) - {""}
    return native if name in native else frozenset({name})
