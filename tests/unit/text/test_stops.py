"""Stop strings end an answer at the same place however its text arrives, and nothing of them is ever shown early."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_service.errors import IntegrityError, InvalidRequestError
from magnitude_service.text.stops import STOP_BYTES_MAX, STOPS_MAX, StopMatcher, StopResult

LETTERS = st.text("ab\n😸", max_size=30)
STOPS = st.lists(st.text("ab\n😸", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 1000), max_size=10)


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(ends)]


def first_match(text: str, stops: list[str]) -> tuple[str, int, int] | None:
    """The oracle: at the first end of any stop string, the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return longest, end - len(longest), end
    return None


def stream(matcher: StopMatcher, parts: list[str]) -> tuple[str, StopResult | None]:
    shown, match = "", None
    for part in parts:
        result = matcher.push(part)
        shown += result.text
        match = match or (result if result.matched is not None else None)
    return shown + matcher.finish().text, match


@given(LETTERS, STOPS, CUTS, st.booleans())
def test_any_chunking_gives_what_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    shown, match = stream(StopMatcher(stops, include_stop=include_stop), pieces(text, cuts))
    expected = first_match(text, stops)
    if expected is None:
        assert (shown, match) == (text, None)
    else:
        stop, begin, end = expected
        assert shown == text[: end if include_stop else begin]
        assert match is not None
        assert (match.matched, match.begin, match.end) == (stop, begin, end)


@given(LETTERS, STOPS)
def test_exactly_the_longest_suffix_that_may_become_a_stop_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    if matcher.push(text).matched is not None:
        return
    suffixes = [text[begin:] for begin in range(len(text) + 1)]
    assert matcher.held == next(suffix for suffix in suffixes if any(stop.startswith(suffix) for stop in [*stops, ""]))
    assert matcher.offset == len(text) - len(matcher.held)


@given(LETTERS, LETTERS, STOPS, st.booleans())
def test_a_restored_matcher_goes_on_as_if_never_stopped(
    before: str, after: str, stops: list[str], include_stop: bool
) -> None:
    matcher = StopMatcher(stops, include_stop=include_stop)
    if matcher.push(before).matched is not None:
        return
    restored = StopMatcher(stops, include_stop=include_stop, held=matcher.held, offset=matcher.offset)
    assert restored.push(after) == matcher.push(after)
    assert (restored.held, restored.offset) == (matcher.held, matcher.offset)
    assert restored.finish() == matcher.finish()


def test_a_stop_string_across_three_tokens_is_never_shown() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert [matcher.push(part) for part in ("Hello\n", "Us", "er: hi")] == [
        StopResult("Hello"),
        StopResult(""),
        StopResult("", "\nUser:", 5, 11),
    ]
    assert matcher.push("more") == StopResult("")
    assert matcher.finish() == StopResult("")


def test_held_text_is_shown_as_soon_as_it_cannot_be_a_stop_string() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("##").text == ""
    assert matcher.push("x").text == "##x"


def test_of_a_stop_string_and_its_prefix_the_prefix_ends_the_answer() -> None:
    assert StopMatcher(["abc", "ab"]).push("xabc") == StopResult("x", "ab", 1, 3)


def test_of_two_that_end_together_the_longer_one_counts() -> None:
    assert StopMatcher(["b", "ab"]).push("xab") == StopResult("x", "ab", 1, 3)


def test_a_stop_string_inside_the_beginning_of_another_is_found() -> None:
    assert StopMatcher(["abcdef", "cd"]).push("abcd") == StopResult("ab", "cd", 2, 4)


def test_a_stop_string_that_is_the_whole_answer_leaves_nothing() -> None:
    assert StopMatcher(["END"]).push("END") == StopResult("", "END", 0, 3)
    assert StopMatcher(["END"], include_stop=True).push("END") == StopResult("END", "END", 0, 3)


def test_an_answer_that_ends_in_half_a_stop_string_keeps_it() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN").text == "the "
    assert matcher.finish().text == "EN"


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    assert StopMatcher([]).push("anything") == StopResult("anything")


def test_time_is_linear_where_every_character_might_begin_a_stop_string() -> None:
    def seconds(length: int) -> float:
        matcher = StopMatcher(["a" * 1000 + "b", *("a" * size + "c" for size in range(1, 15))])
        before = time.process_time()
        for _ in range(length):
            matcher.push("a")
        matcher.push("d" * length)
        return time.process_time() - before

    seconds(1000)
    short = min(seconds(5_000) for _ in range(3))
    assert min(seconds(40_000) for _ in range(3)) < 8 * 3 * short


def test_too_many_stop_strings_are_refused_with_both_numbers() -> None:
    StopMatcher(["x"] * STOPS_MAX)
    with pytest.raises(InvalidRequestError, match="There are 17 stop strings; 16 are allowed") as refused:
        StopMatcher(["x"] * (STOPS_MAX + 1))
    assert refused.value.field == "stopping.stop_strings"


@pytest.mark.parametrize(("stop", "size"), [("", 0), ("é" * 513, 1026)])
def test_an_empty_or_too_long_stop_string_is_refused_by_its_index(stop: str, size: int) -> None:
    StopMatcher(["x" * STOP_BYTES_MAX])
    with pytest.raises(InvalidRequestError, match=f"Stop string 1 has {size} bytes; 1 to 1024 are allowed") as refused:
        StopMatcher(["ok", stop])
    assert refused.value.field == "stopping.stop_strings[1]"


@pytest.mark.parametrize("held", ["x", "ab", "xa", "abx"])
def test_a_state_that_these_stop_strings_cannot_have_is_refused(held: str) -> None:
    with pytest.raises(IntegrityError, match="is not the beginning of any of these stop strings"):
        StopMatcher(["ab"], held=held)
