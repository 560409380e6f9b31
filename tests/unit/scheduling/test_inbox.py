"""The bounded inbox between the event loop and the engine thread."""

from __future__ import annotations

import pytest

from magnitude_service.errors import ExhaustedError, InvalidRequestError, MagnitudeError, UnavailableError
from magnitude_service.scheduling.inbox import Inbox
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.sequence import RequestState


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(SchedulingOptions(waiting_max=2))


@pytest.fixture
def state_of(request_of):
    return lambda name, **fields: RequestState(request_of(name, **fields), ModelLimits(256, 97), 0.0)


def test_a_full_queue_refuses_with_both_numbers_and_a_delay(inbox, state_of) -> None:
    inbox.settle([], 0, 3.5)
    inbox.submit(state_of("a"))
    inbox.submit(state_of("b"))
    with pytest.raises(ExhaustedError, match="2 requests are waiting, and the queue holds 2") as caught:
        inbox.submit(state_of("c"))
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.retry_after_seconds == 3.5


def test_taken_requests_count_as_waiting_until_the_step_says_otherwise(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    inbox.submit(state_of("b"))
    inbox.take(wait=False)
    with pytest.raises(ExhaustedError):
        inbox.submit(state_of("c"))
    inbox.settle([], 1, 1.0)
    assert inbox.waiting == 1
    inbox.submit(state_of("c"))
    assert inbox.waiting == 2


def test_requests_that_come_during_a_step_are_counted_with_those_that_wait(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    inbox.take(wait=False)
    inbox.submit(state_of("b"))
    inbox.settle([], 1, 1.0)
    assert inbox.waiting == 2


def test_an_id_can_be_used_again_only_after_its_request_has_ended(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    with pytest.raises(InvalidRequestError, match="'a' is already running"):
        inbox.submit(state_of("a"))
    inbox.take(wait=False)
    inbox.settle(["a"], 0, 1.0)
    inbox.submit(state_of("a"))


def test_what_was_asked_about_an_ended_request_does_not_hit_the_next_of_that_name(inbox, state_of) -> None:
    inbox.submit(state_of("a", choices=2))
    inbox.take(wait=False)
    inbox.abort("a")
    inbox.finish("a", 1, 3)
    inbox.settle(["a"], 0, 1.0)
    inbox.submit(state_of("a", choices=2))
    commands = inbox.take(wait=False)
    assert (len(commands.submitted), commands.aborted, commands.finished) == (1, set(), {})


def test_aborting_says_whether_there_was_anything_to_abort(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    assert inbox.abort("a")
    assert not inbox.abort("b")
    inbox.finish("b", 0, 1)
    commands = inbox.take(wait=False)
    assert (commands.aborted, commands.finished) == ({"a"}, {})


def test_aborting_a_thousand_times_takes_the_space_of_once(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    for _ in range(1000):
        inbox.abort("a")
        inbox.finish("a", 0, 2)
    commands = inbox.take(wait=False)
    assert (commands.aborted, commands.finished) == ({"a"}, {("a", 0): 2})


def test_an_empty_inbox_sleeps_until_something_is_asked(inbox, state_of, monkeypatch) -> None:
    wakes = iter([lambda: None, lambda: inbox.submit(state_of("a"))])
    monkeypatch.setattr(inbox._changed, "wait", lambda timeout: next(wakes)())
    assert len(inbox.take(wait=True).submitted) == 1
    assert next(wakes, None) is None, "it slept twice, and woke for the request"


def test_a_busy_engine_does_not_sleep(inbox, monkeypatch) -> None:
    monkeypatch.setattr(inbox._changed, "wait", lambda timeout: pytest.fail("slept"))
    assert inbox.take(wait=False).submitted == []


def test_stopping_wakes_an_idle_engine(inbox, monkeypatch) -> None:
    monkeypatch.setattr(inbox._changed, "wait", lambda timeout: inbox.stop())
    assert inbox.take(wait=True).drain_at == float("-inf")
    assert inbox.stopped


def test_a_sleep_with_an_end_brings_nothing(inbox) -> None:
    assert inbox.take(wait=True, timeout_seconds=0.001).submitted == []


def test_a_session_that_changed_hands_wakes_the_engine_once(inbox) -> None:
    inbox.wake()
    assert inbox.take(wait=True).woken
    assert not inbox.take(wait=False).woken


def test_a_draining_engine_takes_nothing_new(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    inbox.drain(at=50.0)
    with pytest.raises(UnavailableError) as caught:
        inbox.submit(state_of("b"))
    assert caught.value.reason == "DRAINING"
    assert caught.value.retry_after_seconds
    assert inbox.take(wait=False).drain_at == 50.0
    assert inbox.take(wait=False).drain_at == 50.0, "it holds for every later step"


def test_a_second_drain_can_only_shorten_the_grace(inbox) -> None:
    inbox.drain(at=50.0)
    inbox.drain(at=90.0)
    assert inbox.take(wait=False).drain_at == 50.0
    inbox.drain(at=20.0)
    assert inbox.take(wait=False).drain_at == 20.0


def test_drained_means_that_nothing_is_left(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    inbox.drain(at=50.0)
    assert not inbox.wait_drained(0)
    inbox.take(wait=False)
    inbox.settle(["a"], 0, 1.0)
    assert inbox.wait_drained(0)


def test_draining_an_idle_engine_is_done_at_once(inbox) -> None:
    inbox.drain(at=50.0)
    assert inbox.wait_drained(0)


def test_after_a_failure_its_error_is_what_everybody_gets(inbox, state_of) -> None:
    inbox.submit(state_of("a"))
    error = MagnitudeError("broken")
    assert [state.request.request_id for state in inbox.fail(error)] == ["a"]
    with pytest.raises(MagnitudeError, match="broken"):
        inbox.submit(state_of("b"))
    assert not inbox.abort("a")
    assert inbox.waiting == 0
