"""The engine loop over a model that is a hash of its history: answers, endings, failures, step by step."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from magnitude_service.engine.batch import RowStatus
from magnitude_service.errors import IntegrityError, InvalidRequestError, MagnitudeError
from magnitude_service.scheduling.request import ChoiceFinished, PromptProgress, RequestFinished, TokenChosen

# Answers


def test_a_request_gives_progress_then_tokens_then_its_end(bench, request_of) -> None:
    events = bench.run(request_of("a", prompt=5, max_tokens=3))
    kinds = [type(event) for event in events]
    assert kinds == [PromptProgress, TokenChosen, TokenChosen, TokenChosen, ChoiceFinished, RequestFinished]
    assert (events[0].done, events[0].total) == (5, 5)
    assert events[-2].reason.value == "MAX_TOKENS"
    assert events[-1].error is None


def test_tokens_are_the_same_alone_and_among_others(bench_of, request_of) -> None:
    wanted = request_of("a", prompt=75, max_tokens=40, seed=11, repetition_penalty=1.1, penalty_window=20)
    alone = bench_of()
    alone.run(wanted)
    crowded = bench_of(rows_max=16, sequences_max=8, output_rows_max=16, prefill_rows_while_decoding=5)
    crowded.submit(*(request_of(f"x{i}", prompt=30 + 9 * i, max_tokens=10 + i, seed=i) for i in range(5)))
    for _ in range(3):
        crowded.step()
    crowded.run(wanted, *(request_of(f"y{i}", prompt=40, max_tokens=9, choices=3) for i in range(3)))
    assert len(alone.tokens("a")) == 40
    assert crowded.tokens("a") == alone.tokens("a")


def test_several_choices_differ_and_can_be_had_again(bench, bench_of, request_of) -> None:
    bench.run(request_of("a", prompt=70, max_tokens=12, choices=4, seed=3))
    answers = [tuple(bench.tokens("a", choice)) for choice in range(4)]
    assert len(set(answers)) == 4
    again = bench_of(rows_max=8, sequences_max=5, output_rows_max=8)
    again.run(request_of("b", prompt=33, max_tokens=30), request_of("a", prompt=70, max_tokens=12, choices=4, seed=3))
    assert [tuple(again.tokens("a", choice)) for choice in range(4)] == answers


def test_choice_zero_is_what_a_single_choice_would_be(bench, bench_of, request_of) -> None:
    bench.run(request_of("a", prompt=70, max_tokens=12, choices=4, seed=3))
    single = bench_of()
    single.run(request_of("a", prompt=70, max_tokens=12, seed=3))
    assert bench.tokens("a", 0) == single.tokens("a")


def test_a_prompt_is_computed_once_for_all_choices_but_for_its_last_page(bench, request_of) -> None:
    bench.run(request_of("a", prompt=32 * 3 + 5, max_tokens=1, choices=4))
    assert sum(plan.tokens.size for plan in bench.executor.plans) == 101 + 3 * 5
    assert [e.done for e in bench.events if isinstance(e, PromptProgress)] == [101]


def test_the_sampled_position_numbers_the_draw(bench, request_of) -> None:
    bench.run(request_of("a", prompt=5, max_tokens=3))
    assert [plan.samplers["draw"].tolist() for plan in bench.executor.plans] == [[5], [6], [7]]


def test_a_penalty_window_holds_the_last_tokens_of_prompt_and_answer(bench, request_of) -> None:
    bench.run(request_of("a", prompt=[1, 2, 3], max_tokens=3, presence_penalty=0.5, penalty_window=4))
    windows = [plan.window.tolist() for plan in bench.executor.plans]
    first, second, _ = bench.tokens("a")
    assert windows == [[1, 2, 3], [1, 2, 3, first], [2, 3, first, second]]


def test_without_penalties_no_window_is_sent(bench, request_of) -> None:
    bench.run(request_of("a", prompt=50, max_tokens=3))
    assert all(plan.window.size == 0 for plan in bench.executor.plans)


def test_only_allowed_tokens_are_chosen(bench, request_of) -> None:
    allowed = frozenset({3, 40, 96})
    bench.run(request_of("a", max_tokens=30, allowed_token_ids=allowed, choices=2), request_of("b", max_tokens=30))
    assert set(bench.tokens("a", 0)) | set(bench.tokens("a", 1)) == allowed
    assert not set(bench.tokens("b")) <= allowed
    assert bench.executor.plans[-1].masks.shape == (1, 4)


def test_each_request_has_its_own_mask(bench, request_of) -> None:
    sets = {name: frozenset({index, 50 + index}) for index, name in enumerate("abc")}
    bench.run(*(request_of(name, max_tokens=20, allowed_token_ids=allowed) for name, allowed in sets.items()))
    assert {name: frozenset(bench.tokens(name)) for name in sets} == sets


def test_biases_reach_only_their_own_row(bench, request_of) -> None:
    forbidden = dict.fromkeys(range(90), -np.inf)
    bench.run(request_of("a", max_tokens=20, logit_bias=forbidden), request_of("b", max_tokens=20))
    assert min(bench.tokens("a")) >= 90
    assert min(bench.tokens("b")) < 90


# Endings


def test_an_end_token_finishes_the_choice_and_is_no_part_of_it(bench, bench_of, request_of) -> None:
    bench.run(request_of("a", max_tokens=20))
    fifth = bench.tokens("a")[4]
    place = bench.tokens("a").index(fifth)
    other = bench_of()
    other.run(request_of("a", max_tokens=20, end_token_ids=frozenset({fifth}), stop_token_ids=frozenset({fifth})))
    assert other.tokens("a") == bench.tokens("a")[:place]
    [end] = [event for event in other.events if isinstance(event, ChoiceFinished)]
    assert (end.reason.value, end.token) == ("EOS", fifth)


def test_a_stop_token_finishes_the_choice_under_its_own_name(bench, request_of) -> None:
    bench.run(request_of("a", max_tokens=20, stop_token_ids=frozenset(range(97))))
    assert bench.tokens("a") == []
    assert bench.reason("a") == "STOP_TOKEN"


def test_no_end_is_chosen_before_min_tokens(bench, request_of) -> None:
    everything_but_one = frozenset(range(1, 97))
    bench.run(request_of("a", max_tokens=20, min_tokens=6, stop_token_ids=everything_but_one))
    assert bench.tokens("a") == [0] * 6
    assert bench.reason("a") == "STOP_TOKEN"


def test_min_tokens_outweighs_a_bias_towards_the_end(bench, request_of) -> None:
    bench.run(request_of("a", max_tokens=3, min_tokens=3, end_token_ids=frozenset({5}), logit_bias={5: 100.0, 6: 1.0}))
    plan = bench.executor.plans[0]
    assert plan.bias_ids.tolist() == [5, 6]
    assert plan.bias_values.tolist() == [-np.inf, 1.0]


def test_max_tokens_of_zero_computes_the_prompt_and_ends(bench, request_of) -> None:
    events = bench.run(request_of("a", prompt=40, max_tokens=0))
    assert [type(event) for event in events] == [PromptProgress, ChoiceFinished, RequestFinished]
    assert bench.reason("a") == "MAX_TOKENS"
    assert bench.executor.plans[0].output_rows.size == 0


def test_without_max_tokens_the_answer_fills_the_context(bench_of, request_of) -> None:
    bench = bench_of(context_tokens=64)
    bench.run(request_of("a", prompt=24, max_tokens=None))
    assert len(bench.tokens("a")) == 40
    assert bench.reason("a") == "CONTEXT_LIMIT"


def test_a_time_limit_ends_with_what_is_there(bench, request_of) -> None:
    bench.submit(request_of("a", max_tokens=100, time_limit_seconds=2.0))
    bench.step()
    bench.step()
    bench.now += 2.0
    bench.step()
    assert len(bench.tokens("a")) == 2
    assert bench.reason("a") == "TIME_LIMIT"
    assert bench.finished("a").error is None
    assert bench.pool.pages_used == 0


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_deadline_fails_the_request_wherever_it_is(bench_of, request_of, steps: int) -> None:
    bench = bench_of(rows_max=16, sequences_max=1, output_rows_max=16)
    bench.submit(request_of("a", prompt=40, max_tokens=50, deadline_seconds=bench.now + 1))
    bench.submit(request_of("b", prompt=40, max_tokens=3))
    for _ in range(steps):
        bench.step()
    bench.now += 1
    bench.step()
    error = bench.finished("a").error
    assert error.reason == "DEADLINE_EXCEEDED"
    assert {0: "in the queue", 1: "16 of 40 prompt", 4: "2 generated"}[steps] in error.message
    bench.run()
    assert len(bench.tokens("b")) == 3


def test_a_deadline_passes_in_the_queue(bench_of, request_of) -> None:
    bench = bench_of(sequences_max=1)
    bench.submit(request_of("a", max_tokens=9), request_of("b", deadline_seconds=bench.now + 1))
    bench.step()
    bench.now += 2
    bench.step()
    assert bench.finished("b").error.reason == "DEADLINE_EXCEEDED"
    assert bench.finished("b").timings.queue == 2.0
    assert bench.loop.requests.keys() == {"a"}


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_abort_frees_pages_within_a_step_and_touches_nobody_else(bench_of, request_of, steps: int) -> None:
    alone = bench_of()
    alone.run(request_of("b", prompt=9, max_tokens=20))
    bench = bench_of(rows_max=16, sequences_max=5, output_rows_max=16)
    bench.submit(request_of("b", prompt=9, max_tokens=20), request_of("a", prompt=60, max_tokens=50, choices=2))
    for _ in range(steps):
        bench.step()
    bench.commands.aborted.add("a")
    bench.step()
    assert bench.finished("a").error.code == "CANCELLED"
    assert {sequence.state.request.request_id for sequence in bench.loop.running} == {"b"}
    assert bench.pool.pages_used == 1
    bench.run()
    assert bench.tokens("b") == alone.tokens("b")


def test_a_choice_finished_from_above_ends_without_an_event_of_its_own(bench, request_of) -> None:
    bench.submit(request_of("a", max_tokens=50, choices=2))
    for _ in range(4):
        bench.step()
    sequences = bench.loop.requests["a"].sequences
    bench.commands.finished["a", 1] = 1
    bench.step()
    assert [sequence.choice for sequence in bench.loop.running] == [0]
    bench.commands.finished["a", 0] = 2
    bench.step()
    assert bench.finished("a").error is None
    assert not [event for event in bench.events if isinstance(event, ChoiceFinished)]
    assert [sequence.generated for sequence in sequences] == [2, 1]


def test_finishing_or_aborting_what_has_ended_changes_nothing(bench, request_of) -> None:
    bench.run(request_of("a"))
    bench.commands.finished["a", 0] = 1
    bench.commands.aborted.add("a")
    assert bench.step() == []


@pytest.mark.parametrize(("steps", "computed"), [(2, 66), (3, 99)])
def test_another_choice_takes_the_prompt_over_when_the_first_is_ended(
    bench_of, request_of, steps: int, computed: int
) -> None:
    whole = bench_of()
    whole.run(request_of("a", prompt=100, max_tokens=6, choices=3))
    bench = bench_of(rows_max=40, sequences_max=4, output_rows_max=35)
    bench.submit(request_of("a", prompt=100, max_tokens=6, choices=3, prompt_logprobs=True))
    for _ in range(steps):
        bench.step()
    assert bench.loop.requests["a"].prompt_computed == computed
    bench.commands.finished["a", 0] = 0
    bench.run()
    assert [bench.tokens("a", choice) for choice in range(3)] == [[], whole.tokens("a", 1), whole.tokens("a", 2)]
    progress = [event for event in bench.events if isinstance(event, PromptProgress)]
    done = [event.done for event in progress]
    assert done == sorted(set(done))
    assert done[-1] == 100
    assert [e.first + i for e in progress for i in range(len(e.logprobs))] == list(range(1, 100))


# Log-probabilities


@pytest.mark.parametrize("rows_max", [8, 512])
def test_prompt_tokens_are_scored_once_each_and_in_order(bench_of, request_of, score_of, rows_max: int) -> None:
    bench = bench_of(rows_max=rows_max, sequences_max=4, output_rows_max=6)
    wanted = request_of("a", prompt=45, max_tokens=2, prompt_logprobs=True, top_logprobs=2, choices=2)
    bench.run(wanted, request_of("b", prompt=12, max_tokens=8), request_of("c", prompt=30, prompt_logprobs=True))
    events = [event for event in bench.events if isinstance(event, PromptProgress) and event.request_id == "a"]
    places = [event.first + index for event in events for index in range(len(event.logprobs))]
    assert places == list(range(1, 45))
    scores = [entry.logprob for event in events for entry in event.logprobs]
    assert scores == [pytest.approx(score_of(wanted.prompt[:p], int(wanted.prompt[p]))) for p in range(1, 45)]
    assert {len(entry.top) for event in events for entry in event.logprobs} == {2}


def test_each_token_has_its_log_probability_and_as_many_others_as_asked_for(bench, request_of) -> None:
    bench.run(request_of("a", top_logprobs=3), request_of("b"), request_of("c", top_logprobs=1))
    counts = {e.request_id: len(e.logprobs.top) for e in bench.events if isinstance(e, TokenChosen)}
    assert counts == {"a": 3, "b": 0, "c": 1}
    assert all(event.logprobs.logprob == -0.5 for event in bench.events if isinstance(event, TokenChosen))


# Failures


def test_logits_that_are_no_numbers_fail_their_own_request_only(bench, request_of) -> None:
    bench.executor.bad_tokens[90] = RowStatus.NOT_FINITE
    forbidden = {90: -np.inf}
    bench.run(
        request_of("a", prompt=[1, 90, 3], choices=2, max_tokens=9),
        request_of("b", prompt=[1, 2, 3], max_tokens=9, logit_bias=forbidden),
    )
    assert bench.finished("a").error.reason == "LOGITS_NOT_FINITE"
    assert bench.finished("b").error is None
    assert len(bench.tokens("b")) == 9


def test_no_candidate_is_the_requests_own_fault(bench, request_of) -> None:
    both = {"allowed_token_ids": frozenset({4}), "stop_token_ids": frozenset({4}), "min_tokens": 1}
    bench.run(request_of("a", **both), request_of("b"))
    assert isinstance(bench.finished("a").error, InvalidRequestError)
    assert bench.finished("b").error is None


def test_an_exception_of_the_executor_fails_the_requests_of_its_step_and_no_others(
    bench_of, request_of, caplog
) -> None:
    bench = bench_of(sequences_max=1)
    bench.submit(request_of("a", max_tokens=9), request_of("b", max_tokens=3))
    bench.step()
    bench.executor.error = ValueError("shape")
    with caplog.at_level(logging.CRITICAL):
        bench.step()
    error = bench.finished("a").error
    assert type(error) is MagnitudeError
    assert "ValueError" in error.message
    bench.run()
    assert bench.finished("b").error is None


def test_a_step_that_was_ended_is_taken_again(bench, bench_of, request_of) -> None:
    undisturbed = bench_of()
    undisturbed.run(request_of("a", prompt=40, choices=2))
    bench.submit(request_of("a", prompt=40, choices=2))
    for _ in range(3):
        bench.executor.abort()
        assert bench.step() == []
        bench.step()
    bench.run()
    assert [bench.tokens("a", c) for c in (0, 1)] == [undisturbed.tokens("a", c) for c in (0, 1)]


def test_a_typed_error_of_the_executor_reaches_the_request_as_it_is(bench, request_of) -> None:
    bench.submit(request_of("a"))
    bench.executor.error = InvalidRequestError("no such adapter", field="adapters[0]")
    bench.step()
    assert bench.finished("a").error.details == {"field": "adapters[0]"}


def test_a_damaged_file_fails_every_request_and_no_result_of_that_step_is_believed(bench_of, request_of) -> None:
    bench = bench_of(sequences_max=1)
    bench.submit(request_of("a"), request_of("b"))
    bench.step()
    believed = len(bench.tokens("a"))

    def check() -> None:
        raise IntegrityError("model.gguf was truncated while it was mapped.")

    bench.check = check
    bench.step()
    assert bench.finished("a").error.code == bench.finished("b").error.code == "DATA_LOSS"
    assert len(bench.tokens("a")) == believed
    assert bench.loop.failure is bench.finished("a").error
    assert bench.pool.pages_used == 0


# Draining, reports


def test_the_end_of_a_drain_gives_partial_results_and_refuses_what_waits(bench_of, request_of) -> None:
    bench = bench_of(sequences_max=1)
    bench.submit(request_of("a", max_tokens=50), request_of("b"))
    bench.step()
    bench.commands.drain_at = bench.now + 5
    bench.step()
    assert len(bench.tokens("a")) == 2
    bench.now += 5
    bench.step()
    assert bench.reason("a") == "CANCELLED"
    assert bench.finished("a").error is None
    assert bench.finished("b").error.reason == "DRAINING"
    assert bench.finished("b").error.retry_after_seconds
    assert bench.pool.pages_used == 0


def test_timings_add_up(bench_of, request_of) -> None:
    bench = bench_of(sequences_max=1, rows_max=16, output_rows_max=16)
    bench.executor.during_step = lambda: setattr(bench, "now", bench.now + 1)
    bench.submit(request_of("x", prompt=4, max_tokens=2), request_of("a", prompt=40, max_tokens=5))
    bench.run()
    timings = bench.finished("a").timings
    assert timings.queue == 2.0
    assert timings.prefill == 3.0
    assert timings.first_token == 5.0
    assert timings.decode == 4.0
    assert timings.total == 9.0


def test_every_step_is_reported_with_its_rows_and_its_time(bench_of, request_of) -> None:
    bench = bench_of(rows_max=16, output_rows_max=16)
    bench.executor.during_step = lambda: setattr(bench, "now", bench.now + 0.25)
    bench.run(request_of("a", prompt=20, max_tokens=3))
    assert [(step.rows, step.seconds) for step in bench.steps] == [(16, 0.25), (4, 0.25), (1, 0.25), (1, 0.25)]


def test_a_step_tells_the_time_since_the_token_before_and_whether_it_was_all_answers(bench_of, request_of) -> None:
    bench = bench_of(rows_max=16, output_rows_max=16)
    bench.executor.during_step = lambda: setattr(bench, "now", bench.now + 0.25)
    bench.submit(request_of("a", prompt=4, max_tokens=4))
    bench.step()
    bench.step()
    bench.submit(request_of("b", prompt=4, max_tokens=3))
    bench.run()
    told = [(step.rows, list(step.token_gaps), step.is_decode) for step in bench.steps]
    assert told == [
        (4, [], False),
        (1, [0.25], True),
        (5, [0.25], False),
        (2, [0.25, 0.25], True),
        (1, [0.25], True),
    ]


def test_nothing_to_do_is_no_step(bench) -> None:
    assert bench.step() == []
    assert bench.executor.plans == []
