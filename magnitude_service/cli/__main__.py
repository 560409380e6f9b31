"""`python -m magnitude_service.cli`."""

from magnitude_service.cli.main import main

main()
