"""The arithmetic of a step: native kernels per instruction set, the executor over them, and their NumPy oracle.

Which instruction sets a machine offers is found from what the processor has and the operating system saves; whether one
computes as it should is tried once, before anybody's numbers depend on it.
"""

from __future__ import annotations

import functools
import logging

from magnitude_service.errors import ConfigurationError
from magnitude_service.kernels import _kernels

_log = logging.getLogger(__name__)

__all__ = ["select_instruction_set", "supported_instruction_sets"]


def supported_instruction_sets() -> list[str]:
    """Names of the instruction sets that this machine runs, best first; the last is always `scalar`."""
    return list(_kernels.supported_tables())


def select_instruction_set(forced: str) -> str:
    """The instruction set to compute with: the best one, or the one named (`MAGNITUDE_CPU_ISA`).

    The first call tries it in a child process, about two milliseconds. One that fails is logged once, and the next
    slower one is taken in its place.

    Raises: ConfigurationError when the named one is unknown, this machine cannot run it, or it fails.
    """
    name, suspicions = _kernels.select_table(forced)
    for table, finding in suspicions:
        _log_once(table, finding, name)
    if name is None:
        supported = ", ".join(supported_instruction_sets())
        findings = "".join(f" Its self-test says: {finding}." for _, finding in suspicions)
        raise ConfigurationError(
            f"This machine cannot run the instruction set {forced!r}.{findings}",
            remedy=f"Use one of {supported}, or leave the setting empty for the best.",
            field="cpu_isa",
        )
    return str(name)


@functools.cache
def _log_once(table: str, finding: str, chosen: str | None) -> None:
    """A table that is chosen in spite of a finding could not be tried."""
    if table == chosen:
        _log.warning("Kernels %s are used untried: %s.", table, finding)
    elif chosen is not None:
        _log.warning("Kernels %s are not used, their self-test failed: %s. Computing with %s.", table, finding, chosen)
