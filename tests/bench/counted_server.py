"""`magnitude serve`, which also tells how long the engine thread has computed within native steps.

    python -m tests.bench.counted_server COUNTS serve --model …

The engine thread plans and schedules in Python, then runs a step in native code, as one thread of the kernel pool. No
clock of the system separates the two; here the thread's own clock is read before and after every native call (about
1 µs a step), and the sum is written into the mapped file COUNTS. The pool's workers, which have no name of their own,
get one: a new thread inherits the name of the thread that makes it.
"""

from __future__ import annotations

import mmap
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from magnitude_service.cli.main import main as run_command
from magnitude_service.engine import native
from magnitude_service.kernels import _kernels

POOL_NAME = "kernel-pool"
"""What the pool's workers are called in /proc/PID/task/TID/comm."""

LAYOUT = struct.Struct("<3Q")


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted since the server's start."""

    engine_thread: int
    """The system's number of the thread; 0 before its first step."""
    steps: int
    native_ns: int
    """The engine thread's processor time within native steps."""

    @classmethod
    def read(cls, path: Path) -> Counts:
        """As the server left it after its last step; for when no step runs."""
        return cls(*LAYOUT.unpack(path.read_bytes()))


class CountedCalls:
    """A native executor whose steps are counted; everything else is the executor's own."""

    def __init__(self, executor: _kernels.Executor, memory: mmap.mmap) -> None:
        self._executor = executor
        self._memory = memory
        self._steps = 0
        self._native_ns = 0

    def step(self, *arguments: Any) -> bool:
        """Runs a step and counts it."""
        begin = time.thread_time_ns()
        completed = self._executor.step(*arguments)
        self._native_ns += time.thread_time_ns() - begin
        self._steps += 1
        LAYOUT.pack_into(self._memory, 0, threading.get_native_id(), self._steps, self._native_ns)
        return completed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def count_native_steps(memory: mmap.mmap) -> None:
    """Every native executor that is made from now on is counted."""

    class CountedExecutor(native.NativeExecutor):
        def __init__(self, *arguments: Any) -> None:
            with thread_name(POOL_NAME):
                super().__init__(*arguments)
            self._executor = cast("_kernels.Executor", CountedCalls(self._executor, memory))

    native.NativeExecutor = CountedExecutor  # type: ignore[misc, assignment]


@contextmanager
def thread_name(name: str) -> Iterator[None]:
    """Calls this thread so for a while, and for good the threads that it makes meanwhile."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    before = path.read_text()
    path.write_text(name)
    try:
        yield
    finally:
        path.write_text(before.strip())


def main() -> None:
    """Serves."""
    path, *arguments = sys.argv[1:]
    with open(path, "w+b") as file:
        file.truncate(LAYOUT.size)
        memory = mmap.mmap(file.fileno(), LAYOUT.size)
    count_native_steps(memory)
    run_command(arguments)


if __name__ == "__main__":
    main()
