"""The log never holds up the server: whoever should read it may have stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

from magnitude.client import Client
from tests.support.serving import MAGNITUDE, environment, serving

CALLS = 1500
"""Their lines are more than the 64 KiB that a pipe holds."""


def test_a_log_that_nobody_reads_holds_up_neither_calls_nor_the_end(tiny_path: Path) -> None:
    command = [*MAGNITUDE, "serve", "--model", str(tiny_path), "--port", "0", "--threads", "1"]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"ready on (\S+): ", process.stdout.readline())
            assert found
            with Client(found[1], timeout_seconds=10, retries=False) as client:
                for _ in range(CALLS):
                    client.tokenize("a")
                assert client.health().models
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert process.stderr is not None
            lines = process.stderr.readlines()
        finally:
            process.kill()
    assert all(line.endswith("\n") for line in lines), "no line is cut"
    assert sum("method=Tokenize code=OK" in line for line in lines) > 300


def test_every_call_is_in_the_log_by_the_end(tiny_path: Path) -> None:
    with serving(tiny_path, "--log-format", "json") as served:
        with Client(served.address) as client:
            for _ in range(300):
                client.tokenize("a")
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(20)
        entries = [json.loads(line) for line in served.logged().splitlines()]
    assert sum(entry.get("method") == "Tokenize" for entry in entries) == 300
