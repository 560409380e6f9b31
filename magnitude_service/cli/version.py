"""`magnitude version`: what is installed, and which kernels this machine would run."""

from __future__ import annotations

import platform

import typer


def version() -> None:
    """Print the version, the platform and the instruction set of the kernels."""
    from magnitude_service import __version__
    from magnitude_service.kernels import supported_instruction_sets

    best = supported_instruction_sets()
    typer.echo(
        f"magnitude {__version__}  python {platform.python_version()}  {platform.machine()}  kernels {', '.join(best)}"
    )
