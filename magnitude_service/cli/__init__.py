"""The command line: one file per command, each thin."""

from magnitude_service.cli.main import main

__all__ = ["main"]
