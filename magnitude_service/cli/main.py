"""`magnitude COMMAND …`: chooses the command, and turns errors into one line and an exit status.

0 all is well · 1 a mistake of ours (with its traceback) · 64 wrong use · 65 a damaged file · 66 no such file or model ·
69 not supported · 73 the system's state forbids it · 75 not now, try again · 77 no permission · 78 a wrong setting ·
130 Ctrl-C. The numbers are those of sysexits.h.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from magnitude_service.errors import MagnitudeError, UnimplementedError

PLATFORMS = ("linux", "darwin")


def run_process() -> None:
    """`main` as a process of its own, whose exit status is heard whatever its threads still do.

    A thread that loads, hashes or measures may be in native code. The end of Python's interpreter would unwind it where
    it comes out, and that aborts the process (before Python 3.14): a command that has a status leaves without it.
    """
    try:
        main()
    except SystemExit as end:
        import logging

        logging.shutdown()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            raise end from None  # Python says what could not be written, and gives that its status
        os._exit(int(end.code or 0))


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its status.

    `serve` does not go through typer: its flags are config's, and a server's start must not wait 80 ms for an
    import that it never uses again.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        require_platform(sys.platform)
        if arguments[:1] == ["serve"]:
            from magnitude_service.cli.serve import serve

            sys.exit(serve(arguments[1:]))
        from magnitude_service.cli.commands import run

        sys.exit(run(arguments))
    except MagnitudeError as error:
        _exit_with_line(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def require_platform(platform: str) -> None:
    """Raises UnimplementedError where this is neither Linux nor macOS."""
    if platform not in PLATFORMS:
        raise UnimplementedError(
            f"Magnitude does not run on {platform}: it needs Linux or macOS.",
            remedy="On Windows use it in WSL2.",
            reason="UNSUPPORTED_PLATFORM",
        )


def _exit_with_line(message: str, status: int) -> NoReturn:
    print(f"magnitude: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
