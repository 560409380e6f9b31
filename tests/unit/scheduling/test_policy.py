"""Which tokens run next: order, fairness and bounds of schedules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.policy import admit, plan, rank, share_rows
from magnitude_service.scheduling.sequence import RequestState

LIMITS = ModelLimits(context_tokens=10_000, vocabulary_size=97)


@pytest.fixture
def waiting_of(request_of):
    def make(*prompts: int, **fields) -> list[RequestState]:
        states = []
        for arrival, prompt in enumerate(prompts):
            state = RequestState(request_of(f"r{arrival}", prompt=prompt, **fields), LIMITS, 0.0)
            state.arrival = arrival
            states.append(state)
        return states

    return make


def names(states: list[RequestState]) -> list[str]:
    return [state.request.request_id for state in states]


def rows(chunks: list) -> dict[str, int]:
    return {chunk.sequence.state.request.request_id: chunk.rows for chunk in chunks}


# Admission


def test_admission_reserves_pages_for_prompt_and_answer(waiting_of) -> None:
    [state] = waiting_of(32, max_tokens=33)
    assert state.pages_needed == 2, "the last token is chosen, but never computed"
    [longer] = waiting_of(32, max_tokens=34)
    assert longer.pages_needed == 3


def test_requests_are_admitted_in_order_until_one_does_not_fit(waiting_of) -> None:
    waiting = waiting_of(64, 320, 1, max_tokens=1)
    assert names(admit(waiting, sequences_left=9, pages_left=11)) == ["r0"]
    assert names(admit(waiting, sequences_left=9, pages_left=12)) == ["r0", "r1"]
    assert names(admit(waiting, sequences_left=9, pages_left=13)) == ["r0", "r1", "r2"]


def test_all_choices_of_a_request_are_admitted_together(waiting_of) -> None:
    waiting = waiting_of(5, 5, choices=3)
    assert names(admit(waiting, sequences_left=5, pages_left=99)) == ["r0"]
    assert names(admit(waiting, sequences_left=6, pages_left=99)) == ["r0", "r1"]


def test_shared_prompt_pages_are_counted_once(waiting_of) -> None:
    [state] = waiting_of(32 * 10 + 1, max_tokens=1, choices=4)
    assert state.pages_needed == 10 + 4
    [exact] = waiting_of(32 * 10, max_tokens=1, choices=4)
    assert exact.pages_needed == 9 + 4, "each choice computes the last prompt token for itself"


def test_higher_priority_goes_first_among_those_that_wait(waiting_of) -> None:
    options = SchedulingOptions(waiting_max=4)
    [low] = waiting_of(1, priority=-1)
    [urgent] = waiting_of(1, priority=2)
    [normal] = waiting_of(1)
    urgent.arrival, normal.arrival = 3, 2
    assert sorted([low, normal, urgent], key=lambda s: rank(s, options)) == [urgent, normal, low]


def test_nobody_is_overtaken_for_ever(waiting_of) -> None:
    options = SchedulingOptions(waiting_max=4)
    [old] = waiting_of(1)
    later = []
    for arrival in range(1, 20):
        [state] = waiting_of(1, priority=1)
        state.arrival = arrival
        later.append(state)
    overtaking = [state for state in later if rank(state, options) < rank(old, options)]
    assert len(overtaking) == 3, "one level of priority is worth waiting_max places, and no more"


# Steps


def test_a_prompt_is_computed_in_chunks_of_a_step(waiting_of) -> None:
    schedule = plan([], waiting_of(100), 99, SchedulingOptions(rows_max=64))
    assert rows(schedule.chunks) == {"r0": 64}
    assert not schedule.chunks[0].samples


def test_running_answers_come_first_and_bound_the_prompt_rows(waiting_of) -> None:
    running, prompt = waiting_of(1, 400)
    running.sequences[0].computed = running.prompt_computed = 1
    running.sequences[0].length = 2
    options = SchedulingOptions(rows_max=256, prefill_rows_while_decoding=32)
    schedule = plan(running.sequences, [prompt], 99, options)
    assert rows(schedule.chunks) == {"r0": 1, "r1": 32}
    assert schedule.chunks[0].samples


def test_a_short_late_prompt_does_not_wait_for_a_long_early_one(waiting_of) -> None:
    schedule = plan([], waiting_of(4000, 20), 999, SchedulingOptions(rows_max=64))
    assert rows(schedule.chunks) == {"r0": 44, "r1": 20}


def test_scored_prompts_keep_within_the_output_rows(waiting_of) -> None:
    options = SchedulingOptions(sequences_max=4, output_rows_max=10)
    schedule = plan([], waiting_of(50, 6, 50, prompt_logprobs=True), 99, options)
    outputs = sum(len(chunk.scored) + chunk.samples for chunk in schedule.chunks)
    assert outputs <= 10
    assert all(chunk.rows >= 1 for chunk in schedule.chunks)
    assert len(schedule.chunks) == 3


def test_planning_changes_nothing(waiting_of) -> None:
    waiting = waiting_of(40, 50, choices=2)
    options = SchedulingOptions(rows_max=32)
    assert plan([], waiting, 99, options) == plan([], waiting, 99, options)
    assert all(sequence.computed == 0 for state in waiting for sequence in state.sequences)


# Sharing rows


def test_the_oldest_prompt_gets_half_and_the_others_share_the_rest() -> None:
    assert share_rows([900, 900, 900], 100) == [50, 25, 25]


def test_what_one_does_not_want_goes_to_the_oldest_that_does() -> None:
    assert share_rows([900, 10, 10], 100) == [80, 10, 10]
    assert share_rows([10, 900, 900], 100) == [10, 65, 25]


def test_a_single_row_goes_to_the_oldest() -> None:
    assert share_rows([5, 5, 5], 1) == [1, 0, 0]


def test_no_prompts_share_nothing() -> None:
    assert share_rows([], 5) == []


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 200))
def test_rows_are_all_given_out_and_nobody_gets_more_than_wanted(wanted: list[int], count: int) -> None:
    shares = share_rows(wanted, count)
    assert sum(shares) == min(count, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert shares[0] >= min(wanted[0], (count + 1) // 2)
