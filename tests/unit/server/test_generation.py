"""Answers as they grow, whatever the tokens are cut into."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_service.errors import CancelledError, MagnitudeError
from magnitude_service.scheduling.request import (
    FinishReason,
    PromptProgress,
    Request,
    RequestFinished,
    SamplingParameters,
    StoppingParameters,
    Timings,
    TokenChosen,
    TokenLogprobs,
)
from magnitude_service.server.answer import Answer
from magnitude_service.server.generation import Generation, Generations
from magnitude_service.server.prepared import Prepared
from magnitude_service.server.served_models import Runtime


class Bytes:
    """Token i of a list of byte strings."""

    vocabulary_size, bos_id, eog_ids = 1_000, None, frozenset({999})

    def __init__(self, spelt: list[bytes]) -> None:
        self.spelt = spelt

    def token_bytes(self, id: int, *, render_special: bool = False) -> bytes:
        return self.spelt[id]


class Recorder:
    """An engine that only remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.refusal: MagnitudeError | None = None

    def submit(self, request: Request) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(("submit", request.request_id))

    def finish(self, request_id: str, choice: int, generated_kept: int) -> None:
        self.calls.append(("finish", request_id, choice, generated_kept))

    def abort(self, request_id: str) -> None:
        self.calls.append(("abort", request_id))


NOTHING = Timings(0, 0, 0, 0, 0)


def prepared(name: str = "r", choices: int = 1, stops: tuple[str, ...] = (), echo: str = "") -> Prepared:
    prompt = np.array([0], np.int32)
    request = Request(name, prompt, SamplingParameters(), StoppingParameters(None), choices=choices)
    return Prepared(request, stop_strings=stops, echo=echo)


def generation(engine: Recorder, name: str = "r", **options: object) -> Generation:
    runtime = Runtime(engine, Bytes([b"a", b"b"]))  # type: ignore[arg-type]
    return Generation(prepared(name, **options), runtime)  # type: ignore[arg-type]


PIECES = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"\xf0\x9f", b"\x98\xb8", "é".encode(), b"\xc3", b"\xff", b"", "漢".encode()]),
    max_size=12,
)


@settings(max_examples=500)
@given(PIECES, st.lists(st.sampled_from(["a", "ab", "ba", "é", "b漢"]), max_size=3, unique=True), st.data())
def test_text_taken_in_any_pieces_is_the_text_of_the_kept_tokens_up_to_the_stop(
    spelt: list[bytes], stops: list[str], data: st.DataObject
) -> None:
    answer = Answer(prepared(stops=tuple(stops)), Bytes(spelt))  # type: ignore[arg-type]
    taken = ""
    for token in range(len(spelt)):
        answer.add(token, None)
        if data.draw(st.booleans()):
            taken += answer.take().text
        if answer.end is not None:
            break
    if answer.end is None:
        answer.finish(FinishReason.MAX_TOKENS, None)
    taken += answer.take().text
    whole = b"".join(spelt).decode("utf-8", "replace")
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    assert answer.end is not None
    if not ends:
        assert taken == whole
        assert (answer.end.reason, answer.tokens_kept) == (FinishReason.MAX_TOKENS, len(spelt))
    else:
        assert answer.end.reason is FinishReason.STOP_STRING
        assert answer.end.stop_string is not None
        assert taken + answer.end.stop_string == whole[: min(ends)]


def test_tokens_after_the_stop_are_not_counted_and_the_engine_is_told_once() -> None:
    engine = Recorder()
    one = generation(engine, stops=("b",))
    for token in (0, 1, 0, 1):
        one.take_event(TokenChosen("r", 0, token))
    assert engine.calls == [("finish", "r", 0, 2)]
    [piece] = one.take_pieces()
    assert (piece.text, list(piece.token_ids)) == ("a", [0, 1])


def test_progress_that_nobody_took_is_joined_and_loses_no_logprobs() -> None:
    one = generation(Recorder())
    score = [TokenLogprobs(-float(i)) for i in range(5)]
    one.take_event(PromptProgress("r", 2, 5, 1, score[1:2]))
    one.take_event(PromptProgress("r", 3, 5, 2, score[2:3]))
    one.take_event(PromptProgress("r", 5, 5, 3, score[3:5]))
    progress = one.take_progress()
    assert progress == PromptProgress("r", 5, 5, 1, score[1:5])
    assert one.take_progress() is None


def test_a_cancelled_request_ends_with_what_it_has_and_an_abandoned_one_fails() -> None:
    engine = Recorder()
    one, two = generation(engine, "one", echo="> "), generation(engine, "two")
    one.take_event(TokenChosen("one", 0, 0))
    one.cancel()
    one.cancel()
    one.take_event(RequestFinished("one", NOTHING, 0, CancelledError("aborted")))
    assert one.failure is None
    assert one.answers[0].end is not None
    assert one.answers[0].end.reason is FinishReason.CANCELLED
    assert one.take_pieces()[0].text == "> a"
    two.abandon_unless_ended()
    two.abandon_unless_ended()
    assert isinstance(two.failure, CancelledError)
    assert engine.calls == [("abort", "one"), ("abort", "two")]


def test_an_abort_that_the_engine_decided_fails_the_request() -> None:
    one = generation(Recorder())
    one.take_event(RequestFinished("r", NOTHING, 0, CancelledError("aborted")))
    assert isinstance(one.failure, CancelledError)


def test_a_request_that_the_engine_refuses_leaves_its_name_free() -> None:
    engine, generations = Recorder(), Generations()
    engine.refusal = MagnitudeError("no")
    with pytest.raises(MagnitudeError, match="no"):
        generations.start(generation(engine))
    engine.refusal = None
    generations.start(generation(engine))
    assert len(generations) == 1


def test_events_that_come_before_or_after_the_loop_are_dropped() -> None:
    import asyncio

    generations = Generations()
    generations.deliver([RequestFinished("r", NOTHING)])
    loop = asyncio.new_event_loop()
    generations.attach(loop)
    loop.close()
    worker = threading.Thread(target=generations.deliver, args=([RequestFinished("r", NOTHING)],))
    worker.start()
    worker.join()
