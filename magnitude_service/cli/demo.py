"""`make run`: serves a model, shows one streamed answer through the client, and goes on serving."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys

from magnitude_service.cli.infer import ask
from magnitude_service.errors import MagnitudeError

GRACE_SECONDS = 3


def main() -> int:
    """Starts `magnitude serve` as a child, waits for its ready line, asks, and waits for Ctrl-C. Returns its status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=50051)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("prompt")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends Ctrl-C to the server too: it decides
    command = [sys.executable, "-m", "magnitude_service.cli", "serve", "--model", given.model]
    options = ["--port", str(given.port), "--grace-seconds", str(GRACE_SECONDS), "--log-level", "warning"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        if not ready:
            return server.wait()
        print(ready, end="")
        try:
            print(f"\n> {given.prompt}\n", flush=True)
            ask(f"127.0.0.1:{given.port}", [{"role": "user", "content": given.prompt}], max_tokens=256)
        except MagnitudeError as error:
            print(f"magnitude: {error}", file=sys.stderr)
            server.terminate()
            server.wait()
            return error.exit_code
        if given.once:
            server.terminate()
        else:
            print("\nserving until Ctrl-C; ask from another terminal: .venv/bin/magnitude infer 'your prompt'")
        return server.wait()


if __name__ == "__main__":
    sys.exit(main())
