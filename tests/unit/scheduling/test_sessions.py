"""Sessions: what a request leaves behind, the next one goes on from, whatever became of the pages meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magnitude_service.errors import ExhaustedError, InvalidRequestError, NotFoundError, UnavailableError
from magnitude_service.scheduling.request import PromptProgress, Request, RequestFinished
from magnitude_service.scheduling.session import SavedPages, Session, TextState, TokenKind, merged
from magnitude_service.scheduling.session_pages import COPIES_WHILE_DECODING, PageExport
from magnitude_service.scheduling.session_table import SessionTable

PROMPT, GENERATED = TokenKind.PROMPT, TokenKind.GENERATED
NO_PROMPT: list[int] = []


class Dialogue:
    """One session of a bench: asks, and settles or rolls back as the server does."""

    def __init__(self, bench: Any, request_of: Callable[..., Request], session_id: str = "s", **options: Any) -> None:
        self.bench, self.request_of, self.options = bench, request_of, options
        self.session = Session(session_id)
        self.count = 0

    def request(self, prompt: int | list[int], max_tokens: int, **fields: Any) -> Request:
        self.count += 1
        name = f"{self.session.session_id}{self.count}"
        sessions, session_id = self.bench.sessions, self.session.session_id
        is_live = sessions.is_live(session_id)
        self.session = sessions.hold(session_id, name) if is_live else sessions.add(Session(session_id), name)
        return replace(self.request_of(name, prompt, max_tokens, **{**self.options, **fields}), session=self.session)

    def settle(self, request: Request, keep: bool = True) -> list[int]:
        """What the request generated."""
        tokens = self.bench.tokens(request.request_id)
        if keep and self.bench.finished(request.request_id).error is None:
            self.session.settle(request.prompt.size, len(tokens), TextState())
        else:
            self.session.roll_back()
        self.bench.sessions.release(self.session)
        return tokens

    def ask(self, prompt: int | list[int], max_tokens: int, keep: bool = True, **fields: Any) -> list[int]:
        request = self.request(prompt, max_tokens, **fields)
        self.bench.run(request)
        return self.settle(request, keep)


def test_an_answer_in_two_parts_is_the_answer_in_one(bench_of: Any, request_of: Any) -> None:
    options = {"seed": 5, "repetition_penalty": 1.2, "penalty_window": 20}
    whole = bench_of()
    whole.run(request_of("a", 40, 30, **options))
    for cut in (1, 7, 23, 29):
        dialogue = Dialogue(bench_of(), request_of, **options)
        first = dialogue.ask(40, cut)
        assert first + dialogue.ask(NO_PROMPT, 30 - cut) == whole.tokens("a")


def test_a_session_is_its_prompts_and_answers_in_turn(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    first = dialogue.ask([1, 2, 3], 4)
    second = dialogue.ask([9], 2)
    assert dialogue.session.tokens.tolist() == [1, 2, 3, *first, 9, *second]
    assert dialogue.session.runs == [(PROMPT, 3), (GENERATED, 4), (PROMPT, 1), (GENERATED, 2)]


def test_what_was_computed_is_not_computed_again(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    dialogue.ask(70, 10)
    rows = sum(step.rows for step in dialogue.bench.steps)
    dialogue.ask([4, 5], 3)
    assert sum(step.rows for step in dialogue.bench.steps) - rows == 1 + 2 + 2  # the last token, the prompt, the answer
    assert dialogue.bench.finished("s2").cached_tokens == 79


def test_an_idle_session_holds_the_pages_of_what_is_computed_and_no_more(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    request = dialogue.request(40, 100)
    dialogue.bench.submit(request)
    while len(dialogue.bench.tokens(request.request_id)) < 3:
        dialogue.bench.step()
    dialogue.bench.commands.finished[request.request_id, 0] = 3
    dialogue.bench.run()
    assert dialogue.settle(request)[:3] == dialogue.session.tokens[40:43].tolist()
    assert dialogue.bench.pool.pages_used == 2


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_request_that_fails_leaves_the_session_as_it_was(bench_of: Any, request_of: Any, steps: int) -> None:
    undisturbed, dialogue = (Dialogue(bench_of(rows_max=20), request_of) for _ in range(2))
    for each in (undisturbed, dialogue):
        each.ask(40, 5)
    before = dialogue.session.tokens.tolist()
    request = dialogue.request(30, 9)
    dialogue.bench.submit(request)
    for _ in range(steps):
        dialogue.bench.step()
    dialogue.bench.commands.aborted.add(request.request_id)
    dialogue.bench.run()
    dialogue.settle(request)
    assert dialogue.session.tokens.tolist() == before
    assert dialogue.ask([1, 2], 8) == undisturbed.ask([1, 2], 8)


def test_an_idle_session_gives_its_pages_to_a_request_that_lacks_them(bench_of: Any, request_of: Any) -> None:
    undisturbed = Dialogue(bench_of(), request_of)
    dialogue = Dialogue(bench_of(pages_total=6, context_tokens=190), request_of)
    for each in (undisturbed, dialogue):
        each.ask(60, 9)
    dialogue.bench.run(request_of("large", 150, 20))
    assert (dialogue.session.pages.size, dialogue.session.computed) == (0, 0)
    assert dialogue.ask([7], 9) == undisturbed.ask([7], 9)
    assert dialogue.bench.finished("s2").cached_tokens == 0


def test_the_least_recently_used_session_gives_its_pages_first(bench_of: Any, request_of: Any) -> None:
    bench = bench_of(pages_total=8)
    old, new = (Dialogue(bench, request_of, name) for name in ("old", "new"))
    for each in (old, new):
        each.ask(60, 3)
    bench.run(request_of("large", 100, 60))
    assert (old.session.pages.size, new.session.pages.size) == (0, 2)


def test_a_session_that_is_idle_for_long_loses_its_pages(bench_of: Any, request_of: Any) -> None:
    bench = bench_of(session_pages_seconds=60)
    dialogue = Dialogue(bench, request_of)
    dialogue.ask(60, 3)
    assert bench.loop.idle_seconds() == 60
    bench.now += 59
    bench.step()
    assert bench.pool.pages_used == 2
    assert bench.loop.idle_seconds() == 1
    bench.now += 1
    bench.step()
    assert bench.pool.pages_used == 0
    assert bench.loop.idle_seconds() == float("inf")


def test_sessions_that_wait_for_each_others_pages_all_get_on(bench_of: Any, request_of: Any) -> None:
    bench = bench_of(pages_total=8)
    dialogues = [Dialogue(bench, request_of, name) for name in "abcd"]
    for dialogue in dialogues:
        dialogue.ask(40, 5)
    assert bench.pool.pages_free == 0
    requests = [dialogue.request(100, 60) for dialogue in dialogues]
    bench.submit(*requests)
    answers = []
    while len(answers) < len(dialogues):
        for event in bench.step():
            if isinstance(event, RequestFinished):
                answers.append(dialogues[len(answers)].settle(requests[len(answers)]))
    alone = Dialogue(bench_of(), request_of)
    alone.ask(40, 5)
    assert answers == [alone.ask(100, 60)] * 4


def exported(bench: Any, session: Session) -> np.ndarray:
    """The session's pages, in canonical form."""
    target = np.empty(session.computed * bench.copies.token_bytes(), np.uint8)
    done: list = []
    bench.sessions.hold(session.session_id, "an export")
    bench.commands.exports.append(PageExport(session, bench.copies, target, done.append))
    while not done:
        bench.step()
    assert done == [None]
    bench.sessions.release(session)
    return target


def test_exported_pages_are_the_session_but_for_its_last_token(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    dialogue.ask(70, 3)
    assert exported(dialogue.bench, dialogue.session).view(np.int32).tolist() == dialogue.session.tokens[:-1].tolist()


@pytest.mark.parametrize("covered", [1, 31, 32, 33, 72])
def test_a_restored_session_goes_on_from_its_pages(bench_of: Any, request_of: Any, covered: int) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    dialogue.ask(70, 3)
    pages = exported(dialogue.bench, dialogue.session)
    other = Dialogue(bench_of(), request_of)
    saved = SavedPages(pages[: covered * 4], covered, "hash", None)
    restored = Session("s", dialogue.session.tokens, dialogue.session.runs, version=1, saved_pages=saved)
    other.session = other.bench.sessions.add(restored, "restore")
    other.bench.sessions.release(restored)
    assert other.ask([5, 6], 20) == dialogue.ask([5, 6], 20)
    assert other.bench.finished("s1").cached_tokens == covered


def test_saved_pages_outlive_a_request_that_is_cancelled_while_they_are_loaded(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(pages_total=64, context_tokens=1000), request_of)
    dialogue.ask(600, 3)
    tokens, pages = dialogue.session.tokens, exported(dialogue.bench, dialogue.session)
    other = Dialogue(bench_of(pages_total=64, context_tokens=1000), request_of)
    saved = SavedPages(pages, pages.size // 4, "hash", None)
    other.session = other.bench.sessions.add(Session("s", tokens, version=1, saved_pages=saved), "restore")
    other.bench.sessions.release(other.session)
    busy = request_of("busy", 5, 60)
    other.bench.submit(busy)
    other.bench.step()
    request = other.request([1], 5)
    other.bench.submit(request)
    for _ in range(2):
        other.bench.step()
    assert 0 < other.bench.copies.loaded <= 2 * COPIES_WHILE_DECODING
    other.bench.commands.aborted.add(request.request_id)
    other.bench.run()
    other.settle(request)
    assert other.session.saved_pages is saved
    assert other.ask([5, 6], 20) == dialogue.ask([5, 6], 20)


def test_copies_of_pages_leave_room_between_tokens(bench_of: Any, request_of: Any) -> None:
    bench = bench_of(pages_total=64, context_tokens=1000)
    dialogue = Dialogue(bench, request_of)
    dialogue.ask(900, 3)
    bench.submit(request_of("stream", 5, 20))
    bench.step()
    session, done = dialogue.session, []
    bench.sessions.hold("s", "an export")
    target = np.empty(session.computed * 4, np.uint8)
    bench.commands.exports.append(PageExport(session, bench.copies, target, done.append))
    while not done:
        copied, said = bench.copies.exported, len(bench.tokens("stream"))
        bench.step()
        assert bench.copies.exported - copied <= COPIES_WHILE_DECODING
        assert len(bench.tokens("stream")) == said + 1
    assert target.view(np.int32).tolist() == session.tokens[:-1].tolist()


@pytest.mark.parametrize("pages", [1, 7, 8, 9, 16])
def test_exports_in_a_row_all_end(bench_of: Any, request_of: Any, pages: int) -> None:
    """Also where one ends with the last page that a step may copy."""
    bench = bench_of(pages_total=64, context_tokens=1000)
    dialogues = [Dialogue(bench, request_of, name) for name in "ab"]
    for dialogue in dialogues:
        dialogue.ask(pages * 32, 1)
    bench.submit(request_of("stream", 5, 60))
    bench.step()
    done: list = []
    targets = [np.empty(dialogue.session.computed * 4, np.uint8) for dialogue in dialogues]
    for dialogue, target in zip(dialogues, targets, strict=True):
        bench.sessions.hold(dialogue.session.session_id, "an export")
        bench.commands.exports.append(PageExport(dialogue.session, bench.copies, target, done.append))
    for _ in range(10):
        bench.step()
    assert done == [None, None]
    for dialogue, target in zip(dialogues, targets, strict=True):
        assert target.view(np.int32).tolist() == dialogue.session.tokens[:-1].tolist()


def test_log_probabilities_of_a_prompt_begin_behind_the_session(bench_of: Any, request_of: Any, score_of: Any) -> None:
    dialogue = Dialogue(bench_of(output_rows_max=16), request_of)
    dialogue.ask(70, 3)
    history = dialogue.session.tokens.tolist()
    for pages_kept in (True, False):
        request = dialogue.request([8, 9, 10], 0, prompt_logprobs=True)
        if not pages_kept:
            dialogue.bench.pool.free(dialogue.session.pages)
            dialogue.session.pages, dialogue.session.computed = dialogue.session.pages[:0], 0
        events = dialogue.bench.run(request)
        dialogue.settle(request, keep=False)
        found = [event for event in events if isinstance(event, PromptProgress) and event.logprobs]
        assert [event.first for event in found] == [0]
        expected = [np.float32(score_of(np.array([*history, 8, 9, 10][: 73 + i]), 8 + i)) for i in range(3)]
        assert [entry.logprob for entry in found[0].logprobs] == expected


def test_a_session_and_its_prompt_must_fit_into_the_context(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(context_tokens=100), request_of)
    dialogue.ask(70, 10)
    with pytest.raises(InvalidRequestError, match="of which 80 are the session's"):
        dialogue.bench.submit(dialogue.request(15, 10))


def test_a_session_goes_on_in_one_way(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    with pytest.raises(InvalidRequestError, match="one way"):
        dialogue.bench.submit(dialogue.request(15, 10, choices=2))


def table(sessions_max: int = 2) -> SessionTable:
    return SessionTable(sessions_max, lambda: 0.0, lambda: None)


def test_who_comes_second_hears_that_the_session_is_busy() -> None:
    sessions = table()
    session = sessions.add(Session("a"), "request r1")
    for call in (
        lambda: sessions.hold("a", "request r2"),
        lambda: sessions.add(Session("a"), "restore"),
    ):
        with pytest.raises(UnavailableError, match="request r1") as caught:
            call()
        assert (caught.value.reason, bool(caught.value.retry_after_seconds)) == ("SESSION_BUSY", True)
    session.tokens = np.ones(1, np.int32)
    sessions.release(session)
    assert sessions.hold("a", "request r2") is session


def test_a_name_that_is_reserved_is_busy_whether_its_session_is_live_or_not() -> None:
    sessions = table()
    session = sessions.add(Session("live", np.ones(1, np.int32)), "test")
    with pytest.raises(UnavailableError, match="in use: test"), sessions.reserved("live", "a delete"):
        pass
    sessions.release(session)
    for name in ("live", "saved"):
        with sessions.reserved(name, "a restore"):
            with pytest.raises(UnavailableError, match="in use: a restore"), sessions.reserved(name, "a delete"):
                pass
            if sessions.is_live(name):
                with pytest.raises(UnavailableError, match="in use: a restore"):
                    sessions.hold(name, "a request")
        with sessions.reserved(name, "a delete"):
            pass


def test_a_session_that_came_to_nothing_ends() -> None:
    sessions = table()
    sessions.release(sessions.add(Session("a"), "request"))
    with pytest.raises(NotFoundError) as caught:
        sessions.hold("a", "save")
    assert caught.value.reason == "SESSION_NOT_FOUND"


def test_only_a_saved_session_makes_place_for_another_one() -> None:
    sessions = table(sessions_max=2)
    tokens = np.ones(3, np.int32)
    unsaved, saved = Session("unsaved", tokens), Session("saved", tokens, version=1)
    for session in (unsaved, saved):
        sessions.release(sessions.add(session, "test"))
    sessions.release(sessions.add(Session("new", tokens), "test"))
    assert [sessions.is_live(name) for name in ("unsaved", "saved", "new")] == [True, False, True]
    with pytest.raises(ExhaustedError) as caught:
        sessions.add(Session("newer"), "test")
    assert caught.value.reason == "SESSIONS_EXHAUSTED"


def test_a_session_whose_version_was_deleted_is_not_ended_for_another_one() -> None:
    sessions = table(sessions_max=1)
    sessions.release(sessions.add(Session("a", np.ones(3, np.int32), version=1), "test"))
    sessions.note_deleted("a")
    sessions.note_deleted("nobody")
    with pytest.raises(ExhaustedError):
        sessions.add(Session("b"), "test")


def test_pages_of_a_session_that_ends_go_back(bench_of: Any, request_of: Any) -> None:
    dialogue = Dialogue(bench_of(), request_of)
    dialogue.ask(70, 3)
    sessions = dialogue.bench.sessions
    sessions.end("s")
    assert not sessions.is_live("s")
    dialogue.bench.step()
    assert dialogue.bench.pool.pages_used == 0


def test_runs_of_one_kind_are_one() -> None:
    assert merged([(PROMPT, 0), (PROMPT, 2), (PROMPT, 1), (GENERATED, 0), (PROMPT, 4)]) == [(PROMPT, 7)]


@pytest.mark.parametrize("seed", range(40))
def test_sessions_in_a_crowd_say_what_they_say_alone(bench_of: Any, request_of: Any, seed: int) -> None:
    """Random dialogues with cancelled requests, few pages, and pages that come and go."""
    dice = random.Random(seed)
    scripts = [
        [(dice.randrange(90) if turn else dice.randint(1, 90), dice.randint(0, 30)) for turn in range(3)]
        for _ in range(4)
    ]
    penalties = {"penalty_window": 9, "presence_penalty": 0.5}
    alone = []
    for index, script in enumerate(scripts):
        dialogue = Dialogue(
            bench_of(context_tokens=400), request_of, seed=index, penalty_window=9, presence_penalty=0.5
        )
        alone.append([dialogue.ask(prompt, most) for prompt, most in script])
    bench = bench_of(
        pages_total=dice.randint(13, 30), context_tokens=400, rows_max=40, sequences_max=3, output_rows_max=9
    )
    crowd = [Dialogue(bench, request_of, f"s{index}-", seed=index, **penalties) for index in range(len(scripts))]
    answers: list[list[list[int]]] = [[] for _ in scripts]
    open_requests: dict[int, tuple[Request, bool]] = {}
    while open_requests or any(len(said) < 3 for said in answers):
        for index, dialogue in enumerate(crowd):
            if index not in open_requests and len(answers[index]) < 3 and dice.random() < 0.5:
                prompt, most = scripts[index][len(answers[index])]
                request = dialogue.request(prompt, most)
                bench.submit(request)
                open_requests[index] = request, dice.random() < 0.3
        for request, is_doomed in open_requests.values():
            if is_doomed and dice.random() < 0.2:
                bench.commands.aborted.add(request.request_id)
        bench.step()
        bench.now += 1
        for index, (request, is_doomed) in list(open_requests.items()):
            if request.request_id not in bench.loop.requests:
                del open_requests[index]
                said = crowd[index].settle(request, keep=not is_doomed)
                if not is_doomed:
                    answers[index].append(said)
    assert answers == alone
