"""The engine thread: any thread may submit, finish, abort and drain, and every request gets exactly one end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from magnitude_service.allocator.pages import PagePool
from magnitude_service.errors import (
    ContextLengthError,
    ExhaustedError,
    IntegrityError,
    MagnitudeError,
    UnavailableError,
)
from magnitude_service.scheduling.engine_thread import EngineThread
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.request import RequestFinished, TokenChosen
from magnitude_service.scheduling.session import Session, TextState
from tests.support.serving import eventually

PAGES = 32
PATIENCE_SECONDS = 20.0
"""How long a test waits for what must come; only a broken engine lets it pass."""


class Receiver:
    """Collects the batches that an engine thread hands over."""

    def __init__(self) -> None:
        self.batches: queue.Queue[list] = queue.Queue()
        self.threads: set[str] = set()
        self.events: list = []

    def __call__(self, events: list) -> None:
        self.threads.add(threading.current_thread().name)
        self.batches.put(events)

    def until_finished(self, *names: str) -> dict[str, RequestFinished]:
        """Waits for the end of these requests."""
        ends = {}
        while not ends.keys() >= set(names):
            batch = self.batches.get(timeout=PATIENCE_SECONDS)
            assert batch, "an empty batch was handed over"
            self.events.extend(batch)
            ends |= {event.request_id: event for event in batch if isinstance(event, RequestFinished)}
        return ends


class Rig:
    """An engine thread over the hash model, whose steps can be held at a gate."""

    def __init__(self, bench_of, **options: int) -> None:
        self.executor = bench_of(pages_total=PAGES).executor
        self.pool = PagePool(PAGES)
        self.receiver = Receiver()
        self.failures: list[MagnitudeError] = []
        self.check_error: Exception | None = None
        self.entered, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.engine = EngineThread(
            self.executor,
            self.pool,
            ModelLimits(256, 97),
            SchedulingOptions(**options),
            time.monotonic,
            self.receiver,
            check=self._check,
            on_failed=self.failures.append,
        )

    def hold_steps(self) -> None:
        """From now on each step waits for `gate`."""

        def wait() -> None:
            self.entered.release()
            assert self.gate.acquire(timeout=PATIENCE_SECONDS)

        self.executor.during_step = wait

    def let_go(self) -> None:
        """Holds no step any more."""
        self.executor.during_step = lambda: None
        self.gate.release(1000)

    def _check(self) -> None:
        if self.check_error is not None:
            raise self.check_error


@pytest.fixture
def rig(bench_of) -> Iterator[Rig]:
    rig = Rig(bench_of, waiting_max=2, sequences_max=5)
    rig.engine.start()
    yield rig
    rig.let_go()
    rig.engine.stop()


def test_requests_submitted_from_many_threads_all_end(bench_of, request_of) -> None:
    rig = Rig(bench_of, waiting_max=64)
    rig.engine.start()
    names = [f"r{index}" for index in range(32)]
    threads = [
        threading.Thread(target=rig.engine.submit, args=(request_of(name, prompt=20, max_tokens=8),)) for name in names
    ]
    for thread in threads:
        thread.start()
    ends = rig.receiver.until_finished(*names)
    assert all(end.error is None for end in ends.values())
    assert len([event for event in rig.receiver.events if isinstance(event, TokenChosen)]) == 32 * 8
    assert rig.receiver.threads == {"magnitude-engine"}
    assert rig.engine.load().pages_used == 0
    rig.engine.stop()


def test_all_events_of_a_step_come_in_one_call(bench_of, request_of) -> None:
    rig = Rig(bench_of, waiting_max=8)
    for index in range(4):
        rig.engine.submit(request_of(f"r{index}", max_tokens=3))
    rig.engine.start()
    rig.receiver.until_finished("r0", "r1", "r2", "r3")
    assert len(rig.executor.plans) == 3
    rig.engine.stop()
    assert rig.receiver.batches.empty()


def test_what_can_never_run_is_refused_at_once(rig, request_of) -> None:
    with pytest.raises(ContextLengthError):
        rig.engine.submit(request_of(prompt=250, max_tokens=7))
    with pytest.raises(ExhaustedError, match=r"but the cache has 32 in all") as caught:
        rig.engine.submit(request_of(prompt=1, max_tokens=255, choices=5))
    assert caught.value.reason == "KV_CACHE_EXHAUSTED"


def test_a_full_queue_refuses_the_next(rig, request_of) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("running", choices=5))
    assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.submit(request_of("first"))
    rig.engine.submit(request_of("second"))
    with pytest.raises(ExhaustedError) as caught:
        rig.engine.submit(request_of("third"))
    assert caught.value.reason == "QUEUE_FULL"
    assert 0.1 <= caught.value.retry_after_seconds <= 30
    rig.let_go()
    ends = rig.receiver.until_finished("running", "first", "second")
    assert all(end.error is None for end in ends.values())


def test_an_abort_ends_a_request_that_would_run_for_long(rig, request_of) -> None:
    rig.engine.submit(request_of("a", max_tokens=250))
    assert rig.engine.abort("a")
    assert rig.receiver.until_finished("a")["a"].error.code == "CANCELLED"
    assert rig.engine.load().pages_used == 0
    assert not rig.engine.abort("a")


def test_a_stop_string_found_above_ends_the_choice(rig, request_of) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("a", max_tokens=250))
    rig.gate.release(2)
    for _ in range(3):
        assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.finish("a", 0, generated_kept=1)
    rig.let_go()
    assert rig.receiver.until_finished("a")["a"].error is None
    assert len([event for event in rig.receiver.events if isinstance(event, TokenChosen)]) == 3


def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(rig, request_of) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("a", max_tokens=20))
    assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.drain(grace_seconds=1000)
    with pytest.raises(UnavailableError):
        rig.engine.submit(request_of("b"))
    assert not rig.engine.wait_drained(0)
    rig.let_go()
    assert rig.engine.wait_drained(PATIENCE_SECONDS)
    rig.receiver.until_finished("a")
    assert len([event for event in rig.receiver.events if isinstance(event, TokenChosen)]) == 20


def test_the_grace_period_ends(rig, request_of) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("a", max_tokens=250))
    assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.drain(grace_seconds=0)
    rig.let_go()
    assert rig.engine.wait_drained(PATIENCE_SECONDS)
    assert rig.receiver.until_finished("a")["a"].error is None


def test_stopping_ends_everything_and_joins(bench_of, request_of) -> None:
    rig = Rig(bench_of)
    rig.engine.submit(request_of("a", max_tokens=250))
    rig.engine.start()
    rig.engine.stop()
    assert rig.receiver.until_finished("a")
    assert rig.pool.pages_used == 0
    assert "magnitude-engine" not in {thread.name for thread in threading.enumerate()}


def test_stopping_does_not_wait_for_the_end_of_a_long_step(bench_of, request_of) -> None:
    rig = Rig(bench_of)
    rig.executor.during_step = lambda: rig.entered.release() or rig.executor.aborted.wait(PATIENCE_SECONDS)
    rig.engine.start()
    rig.engine.submit(request_of("a", max_tokens=250))
    assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.stop()
    assert rig.receiver.until_finished("a")
    assert rig.receiver.events[0].reason.value == "CANCELLED"


def test_the_thread_survives_a_step_that_raises(rig, request_of) -> None:
    rig.executor.error = RuntimeError("kernel")
    rig.engine.submit(request_of("a"))
    assert rig.receiver.until_finished("a")["a"].error.code == "INTERNAL"
    rig.engine.submit(request_of("b"))
    assert rig.receiver.until_finished("b")["b"].error is None
    assert rig.failures == []


def test_the_thread_survives_a_receiver_that_raises(bench_of, request_of) -> None:
    rig = Rig(bench_of)
    healthy, calls = rig.receiver, []

    def receive(events: list) -> None:
        healthy(events)
        calls.append(events)
        if len(calls) == 1:
            raise RuntimeError("loop is closed")

    rig.engine._on_events = receive
    rig.engine.start()
    rig.engine.submit(request_of("a", max_tokens=5))
    assert healthy.until_finished("a")["a"].error is None
    rig.engine.stop()


def test_a_damaged_file_fails_the_engine_for_good(rig, request_of) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("a"))
    assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.submit(request_of("b"))
    rig.check_error = IntegrityError("model.gguf was replaced")
    rig.let_go()
    ends = rig.receiver.until_finished("a", "b")
    assert {end.error.code for end in ends.values()} == {"DATA_LOSS"}
    assert rig.failures == [rig.check_error]
    with pytest.raises(IntegrityError, match="was replaced"):
        rig.engine.submit(request_of("c"))
    rig.engine.drain(grace_seconds=1000)
    assert rig.engine.wait_drained(0)


def test_a_mistake_of_our_own_still_ends_every_request(rig, request_of, monkeypatch) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("a", max_tokens=50))
    assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    monkeypatch.setattr(rig.pool, "free", lambda pages: 1 / 0)
    rig.engine.abort("a")
    rig.let_go()
    assert rig.receiver.until_finished("a")["a"].error.code == "INTERNAL"
    assert [type(error) for error in rig.failures] == [MagnitudeError]


def test_load_tells_who_runs_and_who_waits(rig, request_of) -> None:
    rig.hold_steps()
    rig.engine.submit(request_of("a", prompt=40, choices=5))
    rig.gate.release()
    for _ in range(2):
        assert rig.entered.acquire(timeout=PATIENCE_SECONDS)
    rig.engine.submit(request_of("b"))
    load = rig.engine.load()
    assert (load.running, load.waiting, load.pages_used, load.pages_total) == (1, 1, 6, PAGES)
    rig.let_go()
    rig.receiver.until_finished("a", "b")
    load = rig.engine.load()
    assert (load.running, load.waiting, load.pages_used) == (0, 0, 0)
    assert load.tokens_per_second > 0


def test_pages_of_a_session_are_idle_between_its_requests_and_given_back_with_it(rig, request_of) -> None:
    session = rig.engine.sessions.add(Session("s"), "a request")
    rig.engine.submit(replace(request_of("a", prompt=40, max_tokens=4), session=session))
    rig.receiver.until_finished("a")
    session.settle(40, 4, TextState())
    assert (rig.engine.load().pages_used, rig.engine.load().pages_idle) == (2, 0)
    rig.engine.sessions.release(session)
    eventually(lambda: rig.engine.load().pages_idle == 2)
    assert rig.engine.load().pages_used == 2
    rig.engine.sessions.end("s")
    eventually(lambda: rig.engine.load().pages_used == 0)
    assert rig.engine.load().pages_idle == 0


def test_an_engine_that_never_started_can_be_stopped(bench_of) -> None:
    Rig(bench_of).engine.stop()
