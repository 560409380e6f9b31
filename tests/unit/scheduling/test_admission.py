"""What could never run is refused before it is queued, with the number found and the number allowed."""

from __future__ import annotations

import pytest

from magnitude_service.errors import ConfigurationError, ContextLengthError, ExhaustedError, InvalidRequestError
from magnitude_service.scheduling.admission import check_pages, check_request
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.sequence import RequestState

LIMITS = ModelLimits(context_tokens=100, vocabulary_size=97)
OPTIONS = SchedulingOptions(sequences_max=4)


@pytest.fixture
def check(request_of):
    return lambda **fields: check_request(request_of(**fields), LIMITS, OPTIONS)


@pytest.mark.parametrize(("prompt", "max_tokens"), [(60, 40), (100, 0), (99, None), (99, 1), (1, 99)])
def test_what_fits_the_context_exactly_is_allowed(check, prompt: int, max_tokens: int | None) -> None:
    check(prompt=prompt, max_tokens=max_tokens)


@pytest.mark.parametrize(("prompt", "max_tokens", "total"), [(60, 41, 101), (101, 0, 101), (100, None, 101)])
def test_one_token_too_many_is_refused_with_every_number(check, prompt, max_tokens, total) -> None:
    with pytest.raises(ContextLengthError) as caught:
        check(prompt=prompt, max_tokens=max_tokens)
    for number in (prompt, total, 100):
        assert str(number) in caught.value.message
    assert f"at most {max(100 - prompt, 0)}" in caught.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1, 97]},
        {"prompt": [-1]},
        {"logit_bias": {97: 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"allowed_token_ids": frozenset({3, 97})},
        {"stop_token_ids": frozenset({2**31})},
        {"end_token_ids": frozenset({97})},
    ],
)
def test_ids_outside_of_the_vocabulary_are_refused_before_the_queue(check, fields) -> None:
    with pytest.raises(InvalidRequestError, match=r"Token id -?\d+ in .* is outside of the vocabulary \(0 to 96\)"):
        check(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "no tokens"),
        ({"choices": 0}, "0 choices"),
        ({"choices": 5}, "5 choices were asked for; this server computes 1 to 4"),
        ({"top_logprobs": 33}, "33 likeliest tokens were asked for; 0 to 32"),
        ({"top_logprobs": -1}, "-1 likeliest"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
        ({"seed": -1}, "seed -1"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens is 4"),
    ],
)
def test_numbers_out_of_bounds_are_refused(check, fields, message) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check(**fields)


def test_more_pages_than_there_are_can_never_come(request_of) -> None:
    state = RequestState(request_of(prompt=40, max_tokens=60, choices=3), LIMITS, 0.0)
    assert state.pages_needed == 1 + 3 * 3
    check_pages(state, 10)
    with pytest.raises(ExhaustedError) as caught:
        check_pages(state, 9)
    assert caught.value.reason == "KV_CACHE_EXHAUSTED"
    assert "needs 10 key/value pages of 32 tokens (3 choices of up to 60 tokens after a prompt of 40)" in str(
        caught.value
    )
    assert "has 9 in all" in str(caught.value)


@pytest.mark.parametrize("name", ["rows_max", "output_rows_max"])
def test_every_running_answer_has_a_row_in_every_step(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is 15, less than the 16 of sequences_max"):
        SchedulingOptions(**{name: 15})


@pytest.mark.parametrize("name", ["rows_max", "sequences_max", "prefill_rows_while_decoding", "waiting_max"])
def test_options_out_of_bounds_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is 0; it must lie in 1 "):
        SchedulingOptions(**{name: 0})
