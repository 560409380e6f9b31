"""Thirty-two streams at once, among them cancelled, late, aborted and wrong ones: afterwards nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnitude.client import Client
from magnitude.errors import CallError
from magnitude.v1 import inference_pb2
from tests.support.serving import Served, eventually, is_idle, serving

STREAMS = 32
CONTEXT_TOKENS = 512
GROWTH_BYTES_MAX = 6 << 20
"""What anonymous memory may grow by between the second round and the last: noise of allocators, and no leak."""

BAD: tuple[tuple[str, dict[str, object]], ...] = (
    ("temperature", {"temperature": -1}),
    ("logit_bias", {"logit_bias": {10**6: 1.0}}),
    ("context", {"max_tokens": 10**6}),
    ("stop_token_ids", {"stop_token_ids": [10**6]}),
    ("model", {"model": "nobody"}),
    ("structured_output", {"structured_output": inference_pb2.StructuredOutput(regex="(")}),
)


def read(client: Client, seed: int) -> str:
    """A whole stream."""
    stream = client.stream("hello" * (seed % 40 + 1), max_tokens=20 + seed % 30, seed=seed, n=seed % 3 + 1)
    for _ in stream:
        pass
    assert stream.finished is not None
    return "finished"


def cancel(client: Client, seed: int) -> str:
    """A stream that its caller leaves, before or after it has begun."""
    with client.stream("hello", max_tokens=400, ignore_eos=True, seed=seed) as stream:
        for _, _ in zip(stream, range(seed % 5), strict=False):
            pass
    return "cancelled"


def be_late(client: Client, seed: int) -> str:
    """A stream whose deadline passes."""
    with pytest.raises(CallError) as caught:
        list(client.stream("the " * 200, max_tokens=290, ignore_eos=True, timeout_seconds=0.02 + seed % 7 / 100))
    assert caught.value.code.name == "DEADLINE_EXCEEDED"
    return "late"


def abort(client: Client, seed: int) -> str:
    """A stream that another call ends."""
    name = f"aborted-{threading.get_ident()}-{seed}"
    stream = client.stream("hello", max_tokens=290, ignore_eos=True, request_id=name)
    for event in stream:
        if event.HasField("started"):
            client.abort(name)
    assert stream.finished is not None
    assert stream.finished.ends[0].finish_reason == inference_pb2.FINISH_REASON_CANCELLED
    return "aborted"


def be_wrong(client: Client, seed: int) -> str:
    """A stream that is refused with its reason."""
    _, options = BAD[seed % len(BAD)]
    with pytest.raises(CallError) as caught:
        list(client.stream("hello", **{"max_tokens": 5, **options}))
    assert caught.value.code.name in ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")
    return "refused"


KINDS: tuple[Callable[[Client, int], str], ...] = (read, read, cancel, be_late, abort, be_wrong)


def run_round(address: str, number: int) -> Counter[str]:
    """All streams of a round, each on a connection of its own or shared with some others; what became of them."""
    found: list[str] = []
    draws = random.Random(number)
    clients = [Client(address, timeout_seconds=60) for _ in range(8)]

    def work(index: int, kind: Callable[[Client, int], str], seed: int) -> None:
        try:
            found.append(kind(clients[index % len(clients)], seed))
        except BaseException as error:
            found.append(f"{kind.__name__}: {error!r}")

    kinds = [KINDS[index % len(KINDS)] for index in range(STREAMS)]
    threads = [
        threading.Thread(target=work, args=(index, kind, draws.randrange(10**6))) for index, kind in enumerate(kinds)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    return Counter(found)


@pytest.fixture(scope="module")
def server(tiny_path: Path) -> Iterator[Served]:
    """With a cache of 8 MiB, of which every page has been written to: it will not grow any more."""
    with serving(tiny_path, "--context-tokens", str(CONTEXT_TOKENS)) as served:
        with Client(served.address) as client:
            client.infer("hello", n=16, max_tokens=CONTEXT_TOKENS - 5, ignore_eos=True)
        yield served


def run_rounds(served: Served, client: Client, rounds: int) -> None:
    """Rounds of the same mixture; memory is compared from the second one on."""
    begin_bytes, descriptors = 0, 0
    for number in range(rounds):
        assert run_round(served.address, number) == {
            "finished": 12, "cancelled": 5, "late": 5, "aborted": 5, "refused": 5
        }, f"round {number}"  # fmt: skip
        eventually(lambda: is_idle(client), 5)
        if number == 1:
            begin_bytes = client.health().memory.anonymous_bytes
            descriptors = len(os.listdir(f"/proc/{served.process.pid}/fd"))
    growth = client.health().memory.anonymous_bytes - begin_bytes
    assert growth < GROWTH_BYTES_MAX, f"anonymous memory grew by {growth} bytes in {rounds - 2} rounds"
    with contextlib.suppress(AssertionError):  # closed connections take a moment
        eventually(lambda: len(os.listdir(f"/proc/{served.process.pid}/fd")) <= descriptors, 5)
    assert len(os.listdir(f"/proc/{served.process.pid}/fd")) <= descriptors + 2
    assert "internal error" not in served.logged()
    assert "Traceback" not in served.logged()
    assert client.infer("hello", max_tokens=3, ignore_eos=True).usage.completion_tokens == 3


def test_thirty_two_mixed_streams_leave_no_page_and_no_memory_behind(server: Served, client: Client) -> None:
    run_rounds(server, client, 5)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_hundred_rounds_leave_no_page_and_no_memory_behind(server: Served, client: Client) -> None:
    run_rounds(server, client, 100)
