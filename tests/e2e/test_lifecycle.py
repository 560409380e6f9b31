"""A server's end, and the end of single requests: nobody is cut off without a word, and nothing stays behind."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.client import Client
from magnitude.errors import CallError, DeadlineExceeded, Exhausted, InvalidRequest, Unavailable
from magnitude.stream import Stream
from magnitude.v1 import common_pb2, inference_pb2
from tests.support.serving import Served, eventually, is_idle, serving

SLOW = {"MAGNITUDE_CPU_ISA": "scalar"}
MAX_TOKENS = inference_pb2.FINISH_REASON_MAX_TOKENS
CANCELLED = inference_pb2.FINISH_REASON_CANCELLED


@contextlib.contextmanager
def running(served: Served, tokens: int, **options: object) -> Iterator[tuple[Client, Stream]]:
    """A stream of `tokens` tokens that has begun to come."""
    with (
        Client(served.address, retries=False, timeout_seconds=60) as client,
        client.stream("hello", max_tokens=tokens, ignore_eos=True, **options) as stream,
    ):
        next(text for text in stream.texts() if text)
        yield client, stream


def end_of(stream: Stream) -> inference_pb2.StreamFinished:
    """Reads the rest of a stream."""
    for _ in stream:
        pass
    assert stream.finished is not None
    return stream.finished


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish_in_the_grace_period_while_new_ones_hear_draining(
    slow_path: Path, number: signal.Signals
) -> None:
    with serving(slow_path, variables=SLOW) as served, running(served, 60) as (client, stream):
        served.process.send_signal(number)
        eventually(lambda: client.health().models[0].state == common_pb2.MODEL_STATE_DRAINING)
        for call in (lambda: client.infer("hello"), lambda: list(client.stream("hello"))):
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.reason == "DRAINING"
            assert caught.value.retry_after_seconds
        finished = end_of(stream)
        assert finished.ends[0].finish_reason == MAX_TOKENS
        assert finished.usage.completion_tokens == 60
        assert served.process.wait(10) == 0


def test_what_outlasts_the_grace_period_ends_with_a_partial_result(slow_path: Path) -> None:
    with serving(slow_path, "--grace-seconds", "0.3", variables=SLOW) as served, running(served, 5000) as (_, stream):
        begin = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        finished = end_of(stream)
        assert finished.ends[0].finish_reason == CANCELLED
        assert 0 < finished.usage.completion_tokens < 5000
        assert served.process.wait(10) == 0
        assert time.monotonic() - begin < 5


def test_a_second_signal_ends_the_grace_period(slow_path: Path) -> None:
    with serving(slow_path, variables=SLOW) as served, running(served, 5000) as (client, stream):
        served.process.send_signal(signal.SIGTERM)
        eventually(lambda: client.health().models[0].state == common_pb2.MODEL_STATE_DRAINING)
        served.process.send_signal(signal.SIGINT)
        assert end_of(stream).ends[0].finish_reason == CANCELLED
        assert served.process.wait(5) == 0


def test_a_waiting_request_hears_that_the_server_ends(slow_path: Path) -> None:
    flags = ("--sequences-max", "1", "--grace-seconds", "0.2")
    with serving(slow_path, *flags, variables=SLOW) as served, running(served, 5000) as (client, stream):
        waiting = client.inference.Infer.future(inference_pb2.InferRequest(text="wait"))
        eventually(lambda: client.load().waiting_requests == 1)
        served.process.send_signal(signal.SIGTERM)
        assert end_of(stream).ends[0].finish_reason == CANCELLED
        error = waiting.exception(10)
        assert (error.code().name, "in the queue" in error.details()) == ("UNAVAILABLE", True)


def test_a_prefill_of_seconds_does_not_hold_up_the_end(slow_path: Path) -> None:
    flags = ("--grace-seconds", "0.2", "--rows-max", "256")
    with (
        serving(slow_path, *flags, variables=SLOW) as served,
        Client(served.address, retries=False, timeout_seconds=60) as client,
    ):
        call = client.inference.Infer.future(inference_pb2.InferRequest(text="x" * 8000))
        eventually(lambda: client.load().running_requests == 1)
        served.process.send_signal(signal.SIGTERM)
        assert call.result(30).choices[0].end.finish_reason == CANCELLED
        assert served.process.wait(10) == 0


def test_a_client_that_goes_away_frees_its_pages_within_a_step(slow_path: Path) -> None:
    with serving(slow_path, variables=SLOW) as served, Client(served.address) as watcher:
        with running(served, 5000) as (_, stream):
            assert watcher.load().pages_used > 0
            stream.cancel()
            begin = time.monotonic()
            eventually(lambda: is_idle(watcher), 1)
            assert time.monotonic() - begin < 0.5
        leaving = Client(served.address)
        request = inference_pb2.InferRequest(text="hello")
        request.stopping.ignore_eos = True
        call = leaving.inference.Infer.future(request)
        eventually(lambda: watcher.load().running_requests == 1)
        leaving.close()
        assert call.code().name == "CANCELLED"
        eventually(lambda: is_idle(watcher), 1)


@pytest.mark.parametrize("prompt", ["hello", "x" * 6000], ids=["decoding", "in prefill"])
def test_a_deadline_frees_the_pages_and_is_said_in_words(slow_path: Path, prompt: str) -> None:
    with (
        serving(slow_path, "--rows-max", "16", "--output-rows-max", "16", variables=SLOW) as served,
        Client(served.address, retries=False) as client,
    ):
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            client.infer(prompt, timeout_seconds=0.4, ignore_eos=True)
        assert time.monotonic() - begin < 2
        eventually(lambda: is_idle(client), 1)


def test_a_deadline_that_passes_in_the_queue_is_deadline_exceeded(slow_path: Path) -> None:
    with serving(slow_path, "--sequences-max", "1", variables=SLOW) as served, running(served, 5000) as (client, _):
        with pytest.raises(DeadlineExceeded):
            client.infer("wait", timeout_seconds=0.3)
        eventually(lambda: client.load().waiting_requests == 0, 1)
        assert client.load().running_requests == 1, "nobody else is touched"


def test_a_full_queue_refuses_with_a_delay(slow_path: Path) -> None:
    flags = ("--sequences-max", "1", "--waiting-max", "2")
    with serving(slow_path, *flags, variables=SLOW) as served, running(served, 5000) as (client, _):
        waiting = [client.inference.Infer.future(inference_pb2.InferRequest(text="wait")) for _ in range(2)]
        eventually(lambda: client.load().waiting_requests == 2)
        with pytest.raises(Exhausted) as caught:
            client.infer("one too many")
        assert caught.value.reason == "QUEUE_FULL"
        assert caught.value.retry_after_seconds
        for call in waiting:
            call.cancel()
        eventually(lambda: client.load().waiting_requests == 0, 1)


@pytest.mark.parametrize(("prompt", "tokens"), [("hello", 5000), ("hello", 4000), ("x" * 4100, 1), ("x" * 4000, None)])
def test_more_than_the_context_is_refused_with_its_numbers(client: Client, prompt: str, tokens: int | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.infer(prompt, max_tokens=tokens)
    assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert caught.value.details["context_tokens"] == "4000"
    assert list(caught.value.field_violations) in (["stopping.max_tokens"], ["input"])


def test_abort_ends_a_request_with_what_it_has(slow_path: Path) -> None:
    with serving(slow_path, variables=SLOW) as served, running(served, 5000, request_id="mine") as (client, stream):
        assert client.abort("mine", "another") == ["mine"]
        finished = end_of(stream)
        assert finished.ends[0].finish_reason == CANCELLED
        assert finished.usage.completion_tokens > 0
        with contextlib.suppress(CallError):
            assert client.abort("mine") == []
        eventually(lambda: is_idle(client), 1)
