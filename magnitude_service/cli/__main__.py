"""`python -m magnitude_service.cli`."""

from magnitude_service.cli.main import run_process

run_process()
