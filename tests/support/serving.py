"""`magnitude` as a user runs it: a process of its own, with nothing of our environment that could change a setting."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from magnitude.client import Client

MAGNITUDE = (sys.executable, "-m", "magnitude_service.cli")
SECONDS_MAX = 60


def environment(**more: str) -> dict[str, str]:
    """What a process needs to find the package, and `more`."""
    kept = ("PATH", "PYTHONPATH", "HOME", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | more


def magnitude(*arguments: str | Path, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end. `given` is its standard input."""
    return subprocess.run(
        [*MAGNITUDE, *map(str, arguments)],
        input=given,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@dataclass(frozen=True)
class Served:
    """A server that is ready. Its log goes to a file: a pipe that nobody reads would stop it."""

    address: str
    ready_line: str
    process: subprocess.Popen[str]
    log: IO[str]

    def logged(self) -> str:
        """What it has said on standard error."""
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text(encoding="utf-8")


@contextlib.contextmanager
def starting(model: Path, *flags: str, variables: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server of this model on a free port, until SIGTERM at the end of the context, however it then ends."""
    command = [*MAGNITUDE, "serve", "--model", str(model), "--port", "0", "--threads", "1", *flags]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        subprocess.Popen(
            command, env=environment(**(variables or {})), stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"ready on (\S+): ", line)
        served = Served(found[1] if found else "", line, process, log)
        try:
            assert found, f"{line!r}: {served.logged()}"
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def serving(model: Path, *flags: str, variables: Mapping[str, str] | None = None) -> Iterator[Served]:
    """The same; and SIGTERM must end it with status 0."""
    with starting(model, *flags, variables=variables) as served:
        yield served
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            served.process.wait(SECONDS_MAX)
        assert served.process.returncode == 0, served.logged()


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Waits until `condition` holds; what happens in another process can only be asked for again and again."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)


def is_idle(client: Client) -> bool:
    """Whether no request runs or waits, and every page is free."""
    load = client.load()
    return (load.running_requests, load.waiting_requests, load.pages_used) == (0, 0, 0)
