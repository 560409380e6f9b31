"""The command line: one file per command, each thin."""

from magnitude_service.cli.main import run_process

__all__ = ["run_process"]
