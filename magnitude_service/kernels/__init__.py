"""The arithmetic of a step: native kernels per instruction set, the executor over them, and their NumPy oracle.

Which instruction sets a machine runs is found once, from what the processor offers and the operating system saves.
"""

from __future__ import annotations

from magnitude_service.errors import ConfigurationError
from magnitude_service.kernels import _kernels

__all__ = ["select_instruction_set", "supported_instruction_sets"]


def supported_instruction_sets() -> list[str]:
    """Names of the instruction sets that this machine runs, best first; the last is always `scalar`."""
    return list(_kernels.supported_tables())


def select_instruction_set(forced: str) -> str:
    """The instruction set to compute with: the best one, or the one named (`MAGNITUDE_CPU_ISA`).

    Raises: ConfigurationError when the named one is unknown or this machine cannot run it.
    """
    name = _kernels.selected_table(forced)
    if name is None:
        supported = ", ".join(supported_instruction_sets())
        raise ConfigurationError(
            f"This machine cannot run the instruction set {forced!r}.",
            remedy=f"Use one of {supported}, or leave the setting empty for the best.",
            field="cpu_isa",
        )
    return str(name)
