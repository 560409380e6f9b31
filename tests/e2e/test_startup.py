"""What a start costs: nothing is imported, parsed or built that the first request does not need."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from magnitude.client import Client
from tests.support.serving import environment, serving

IMPORT_MS_MAX = 60
NEVER_IMPORTED = ("gguf", "rich", "typer", "jinja2")
ANONYMOUS_BYTES_MAX = 150 << 20

IMPORT = """
import time
begin = time.perf_counter()
import magnitude_service
print((time.perf_counter() - begin) * 1000)
"""

SERVE_AND_ASK = """
import signal, sys, threading
from magnitude_service.cli.main import main

def ask(line):
    import os
    from magnitude.client import Client
    with Client(line.split()[2].rstrip(":")) as client:
        client.infer("hello", max_tokens=2)
        list(client.stream([{"role": "user", "content": "hello"}], max_tokens=2))
        client.health(), client.model()
    os.kill(os.getpid(), signal.SIGTERM)

class Out:
    def write(self, text):
        if text.startswith("ready on "):
            threading.Thread(target=ask, args=(text,)).start()
    def flush(self):
        pass

sys.stdout = Out()
try:
    main(["serve", "--model", sys.argv[1], "--port", "0", "--threads", "1"])
except SystemExit as end:
    assert not end.code, end
print(*sys.modules, file=sys.stderr)
"""


def test_importing_the_package_costs_little() -> None:
    def measure() -> float:
        done = subprocess.run(
            [sys.executable, "-c", IMPORT], env=environment(), capture_output=True, text=True, check=True, timeout=60
        )
        return float(done.stdout)

    found = [measure() for _ in range(5)]
    assert statistics.median(found) < IMPORT_MS_MAX, found


def test_a_server_that_has_served_has_imported_none_of_the_heavy_packages(tiny_path: Path) -> None:
    """Templates render in a child, and the command line's toolkit is for commands."""
    done = subprocess.run(
        [sys.executable, "-c", SERVE_AND_ASK, str(tiny_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = set(done.stderr.splitlines()[-1].split())
    assert {"magnitude_service.server.build", "magnitude_service.engine.native"} <= modules
    assert not {module for module in modules if module.split(".")[0] in NEVER_IMPORTED}


@pytest.mark.model
def test_anonymous_memory_of_smollm2_stays_small(smollm2_path: Path) -> None:
    """After requests, with their key/value pages counted in."""
    with serving(smollm2_path, "--context-tokens", "2048") as served, Client(served.address) as client:
        client.infer("hello " * 300, max_tokens=8)
        assert 0 < client.health().memory.anonymous_bytes < ANONYMOUS_BYTES_MAX
