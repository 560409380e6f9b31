"""What an operator may say about computing. Imports nothing that costs time."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class EngineOptions(Options):
    """How a Program is run. None of these changes a bit of any result."""

    threads: int | None = option(
        None, "Threads that compute. Absent: what the processor quota and affinity allow.", minimum=1, maximum=1024
    )
    cpu_isa: str = option(
        "",
        "Instruction set of the kernels; empty: the best that this machine runs.",
        choices=("", "scalar", "avx2", "avx512", "neon"),
    )
