"""Debian's redis-server on a Unix socket, and clients of it: what the state store is measured beside."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[str]:
    """A server of its own folder, without anybody's configuration; yields its socket. Exits where there is none."""
    if shutil.which("redis-server") is None:
        sys.exit("redis-server is missing: apt-get install redis-server")
    folder.mkdir()
    path = f"{folder}/socket"
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not os.path.exists(path):
            assert process.poll() is None, "redis-server ended"
            time.sleep(0.01)
        yield path
    finally:
        process.terminate()
        process.wait()


def client(path: str) -> redis.Redis:
    """redis-py as it comes, with its parser in C (hiredis) where that is installed."""
    return redis.Redis(unix_socket_path=path)


class BareClient:
    """The least that any client does: one call to send, and as few as possible to receive into memory that is there."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._memory = memoryview(bytearray(bytes_max + 64))

    def get(self, key: str, size: int) -> memoryview:
        """The value of a key, whose size is known."""
        self._socket.sendall(f"GET {key}\r\n".encode())
        front = len(f"${size}\r\n")
        wanted, received = front + size + 2, 0
        while received < wanted:
            received += self._socket.recv_into(self._memory[received:])
        return self._memory[front : front + size]
