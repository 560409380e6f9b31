"""A rolling restart under load: two servers behind the client's own round robin, stopped one by one, started again.

Every request is a stream of many tokens, so that each restart finds streams that run; none may fail or be cut.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnitude.client import Client
from magnitude.errors import CallError
from magnitude.v1 import inference_pb2
from tests.support.serving import Served, eventually, serving

MAX_TOKENS = inference_pb2.FINISH_REASON_MAX_TOKENS
REQUESTS = 2_000
CALLERS = 8
TOKENS = 96
RESTARTS = 4


@dataclass
class Load:
    """What callers of one client have seen."""

    client: Client
    ended: Counter[str] = field(default_factory=Counter)
    wrong: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(REQUESTS)))
    guard: threading.Lock = field(default_factory=threading.Lock)

    def call(self) -> None:
        """Streams one request after the other until all are made."""
        while (number := self._next()) is not None:
            try:
                self._stream(number)
            except CallError as error:
                self.wrong.put(f"{number}: {error.code.name} {error.reason} {error.message}")

    def _next(self) -> int | None:
        with self.guard:
            return next(self.numbers, None)

    def _stream(self, number: int) -> None:
        options = {"max_tokens": TOKENS, "ignore_eos": True, "seed": number, "temperature": 1.0}
        with self.client.stream(f"request {number}", timeout_seconds=120, **options) as stream:
            deltas = sum(event.HasField("delta") for event in stream)
        finished = stream.finished
        if finished is None or finished.ends[0].finish_reason != MAX_TOKENS:
            self.wrong.put(f"{number}: cut after {deltas} deltas: {finished}")
        elif finished.usage.completion_tokens != TOKENS:
            self.wrong.put(f"{number}: {finished.usage.completion_tokens} tokens")
        with self.guard:
            self.ended["ended"] += 1

    @property
    def count(self) -> int:
        """Requests that have ended well or not."""
        return self.ended["ended"] + self.wrong.qsize()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has; a restarted server takes the same one again."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def restarted(stack: contextlib.ExitStack, serve: Callable[[], contextlib.AbstractContextManager[Served]]) -> Served:
    """A server in a stack of its own, which ends it."""
    return stack.enter_context(serve())


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_two_thousand_streams_outlive_a_rolling_restart(tiny_path: Path) -> None:
    ports = free_ports(2)

    def serve(port: int) -> contextlib.AbstractContextManager[Served]:
        return serving(tiny_path, "--port", str(port), "--grace-seconds", "60")

    stacks = [contextlib.ExitStack() for _ in ports]
    with contextlib.ExitStack() as everything:
        for stack in stacks:
            everything.push(stack)
        for stack, port in zip(stacks, ports, strict=True):
            restarted(stack, lambda port=port: serve(port))
        target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        client = everything.enter_context(Client(target))
        load = Load(client)
        threads = [threading.Thread(target=load.call, daemon=True) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        done_at_restart = []
        turns = itertools.islice(itertools.cycle(range(len(ports))), RESTARTS)
        for number, turn in enumerate(turns, 1):
            eventually(lambda wanted=number: load.count >= wanted * REQUESTS // (RESTARTS + 2), 300)
            done_at_restart.append(load.count)
            stacks[turn].close()  # SIGTERM; its running streams end, and it ends with status 0
            restarted(stacks[turn], lambda port=ports[turn]: serve(port))
            with Client(f"127.0.0.1:{ports[turn]}") as one:
                one.wait_ready(60)
            time.sleep(2)  # as a readiness probe and a balancer take their time before the next one
        for thread in threads:
            thread.join(300)
        wrong = [load.wrong.get() for _ in range(load.wrong.qsize())]
    print(f"{load.ended['ended']} streams ended, restarts after {done_at_restart}")
    assert wrong == []
    assert load.ended["ended"] == REQUESTS
    assert done_at_restart[-1] < REQUESTS, "every restart was under load"
