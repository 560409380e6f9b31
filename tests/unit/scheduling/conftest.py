"""A model that is a hash of its history, a clock that is set by hand, and a loop that checks itself after each step."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from magnitude_service.allocator.pages import PagePool, pages_for
from magnitude_service.engine.batch import PAGE_TOKENS, SAMPLER_ROW, RowFlag, RowStatus, StepPlan, StepResult
from magnitude_service.scheduling.admission import check_pages, check_request
from magnitude_service.scheduling.engine_loop import Commands, EngineLoop
from magnitude_service.scheduling.load import StepReport
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.request import (
    ChoiceFinished,
    Request,
    RequestFinished,
    SamplingParameters,
    StoppingParameters,
    TokenChosen,
)
from magnitude_service.scheduling.sequence import RequestState
from magnitude_service.scheduling.session import Session

VOCABULARY = 97
UNWRITTEN = -1


class HashExecutor:
    """Keeps the tokens that it was given in pages, reads each row's history back through the page table, and chooses
    a hash of it. A wrong page, position or order therefore gives other tokens."""

    def __init__(self, pages_total: int) -> None:
        self.memory = np.full((pages_total, PAGE_TOKENS), UNWRITTEN, np.int32)
        self.plans: list[StepPlan] = []
        self.error: Exception | None = None
        self.bad_tokens: dict[int, RowStatus] = {}
        """A row whose history holds one of these has that status."""
        self.during_step: Callable[[], None] = lambda: None
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()

    def step(self, plan: StepPlan) -> StepResult | None:
        check_form(plan, len(self.memory))
        self.plans.append(plan)
        self.during_step()
        if self.aborted.is_set():
            self.aborted.clear()
            return None
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        sequence_of_row = np.repeat(np.arange(len(plan.row_begin) - 1), np.diff(plan.row_begin))
        pages = plan.page_tables[sequence_of_row, plan.positions // PAGE_TOKENS]
        places = pages * PAGE_TOKENS + plan.positions % PAGE_TOKENS
        assert np.unique(places).size == places.size, "two rows of a step write to the same place"
        self.memory.reshape(-1)[places] = plan.tokens
        top = int(plan.samplers["top_logprobs"].max(initial=0))
        results = [
            self._row(plan, plan.page_tables[sequence_of_row[row]], int(plan.positions[row]), sampler, top)
            for row, sampler in zip(plan.output_rows, plan.samplers, strict=True)
        ]
        tokens, logprobs, status, ids = zip(*results, strict=True) if results else ((), (), (), ())
        return StepResult(
            np.array(tokens, np.int32),
            np.array(logprobs, np.float32),
            np.array(status, np.uint8),
            np.array(ids, np.int32).reshape(len(results), top),
            np.tile(-np.arange(top, dtype=np.float32), (len(results), 1)),
        )

    def _row(self, plan: StepPlan, table: np.ndarray, position: int, sampler: np.void, top: int) -> tuple:
        history = self.memory[table].reshape(-1)[: position + 1]
        assert (history != UNWRITTEN).all(), "a row looks at a position that was never computed"
        status = next((s for token, s in self.bad_tokens.items() if token in history), RowStatus.OK)
        window = plan.window[sampler["window_begin"] : sampler["window_end"]]
        text = history.tobytes() + window.tobytes() + sampler["seed"].tobytes() + sampler["draw"].tobytes()
        draw = zlib.crc32(text)
        ids = [(draw + i) % VOCABULARY for i in range(top)]
        if sampler["flags"] & RowFlag.SCORE:
            return 0, score(history, int(sampler["target"])), status, ids
        ids_biased = plan.bias_ids[sampler["bias_begin"] : sampler["bias_end"]]
        values = plan.bias_values[sampler["bias_begin"] : sampler["bias_end"]]
        forbidden = set(ids_biased[values == -np.inf].tolist())
        allowed = [i for i in range(VOCABULARY) if i not in forbidden and _is_allowed(plan, sampler, i)]
        if not allowed:
            return 0, 0.0, RowStatus.NO_CANDIDATE, ids
        return allowed[draw % len(allowed)], -0.5, status, ids


def score(history: np.ndarray, target: int) -> float:
    """What the model above gives as the log-probability of `target` after `history`."""
    return -float(zlib.crc32(history.astype(np.int32).tobytes()) % 1000) - target / 100


def _is_allowed(plan: StepPlan, sampler: np.void, token: int) -> bool:
    if not sampler["flags"] & RowFlag.MASKED:
        return True
    return bool(plan.masks[sampler["mask"]][token // 32] >> (token % 32) & 1)


def check_form(plan: StepPlan, pages_total: int) -> None:
    """Everything that native code takes on trust."""
    rows, sequences, outputs = plan.tokens.size, plan.row_begin.size - 1, plan.output_rows.size
    for name in ("tokens", "positions", "row_begin", "page_tables", "output_rows", "window", "bias_ids"):
        array = getattr(plan, name)
        assert array.dtype == np.int32, name
        assert array.flags.c_contiguous, name
    assert plan.samplers.dtype == SAMPLER_ROW
    assert plan.bias_values.dtype == np.float32
    assert plan.masks.dtype == np.uint32
    assert plan.positions.size == rows > 0
    assert plan.row_begin[0] == 0
    assert plan.row_begin[-1] == rows
    assert (np.diff(plan.row_begin) > 0).all()
    assert plan.page_tables.shape[0] == sequences
    assert ((plan.page_tables >= 0) & (plan.page_tables < pages_total)).all()
    assert plan.samplers.size == outputs
    assert (np.diff(plan.output_rows) > 0).all()
    assert outputs == 0 or 0 <= plan.output_rows[0] <= plan.output_rows[-1] < rows
    for begin, end in itertools.pairwise(plan.row_begin.tolist()):
        assert (np.diff(plan.positions[begin:end]) == 1).all()
        assert plan.positions[end - 1] // PAGE_TOKENS < plan.page_tables.shape[1]
    for name, size in (("window", plan.window.size), ("bias", plan.bias_ids.size)):
        begins, ends = plan.samplers[f"{name}_begin"], plan.samplers[f"{name}_end"]
        assert ((begins <= ends) & (ends <= size)).all(), name
    assert plan.bias_ids.size == plan.bias_values.size


class TokenCopies:
    """The pages of a HashExecutor, four bytes a token; remembers how many pages were copied."""

    def __init__(self, executor: HashExecutor) -> None:
        self.executor = executor
        self.exported = self.loaded = 0

    def token_bytes(self, cache_type: str = "") -> int:
        return 4

    def export(self, page: int, tokens: int, target: np.ndarray, cache_type: str = "") -> None:
        content = self.executor.memory[page, :tokens]
        assert (content != UNWRITTEN).all(), "a position is exported that was never computed"
        target[:] = content.view(np.uint8)
        self.exported += 1

    def load(self, page: int, tokens: int, source: np.ndarray, cache_type: str) -> None:
        assert cache_type == "hash"
        self.executor.memory[page, :tokens] = source.view(np.int32)
        self.loaded += 1


class Bench:
    """An EngineLoop with a hash for a model and a hand-set clock; `events` are all so far."""

    def __init__(self, pages_total: int = 64, context_tokens: int = 256, **options: float) -> None:
        self.now = 100.0
        self.options = SchedulingOptions(**options)
        self.limits = ModelLimits(context_tokens, VOCABULARY)
        self.pool = PagePool(pages_total)
        self.executor = HashExecutor(pages_total)
        self.check: Callable[[], None] = lambda: None
        self.steps: list[StepReport] = []
        self.copies = TokenCopies(self.executor)
        self.loop = EngineLoop(
            self.executor,
            self.pool,
            self.options,
            lambda: self.now,
            check=lambda: self.check(),
            on_step=self.steps.append,
            copies=self.copies,
        )
        self.sessions = self.loop.sessions
        self.events: list = []
        self.commands = Commands()

    def submit(self, *requests: Request) -> None:
        for request in requests:
            check_request(request, self.limits, self.options)
            state = RequestState(request, self.limits, self.now)
            check_pages(state, self.pool.pages_total)
            self.commands.submitted.append(state)

    def step(self) -> list:
        """One step; its events. Checks what must hold after every step."""
        commands, self.commands = self.commands, Commands(drain_at=self.commands.drain_at)
        events = self.loop.step(commands)
        self.events.extend(events)
        self.check_pages()
        if self.executor.plans:
            plan = self.executor.plans[-1]
            assert plan.tokens.size <= self.options.rows_max
            assert plan.output_rows.size <= self.options.output_rows_max
            assert len(plan.row_begin) - 1 <= self.options.sequences_max
        return events

    def run(self, *requests: Request) -> list:
        """Steps until nothing is left; all events of these steps."""
        begin = len(self.events)
        self.submit(*requests)
        self.step()
        while self.loop.requests:
            self.step()
        assert self.pool.pages_used == sum(session.pages.size for session in self.live_sessions())
        return self.events[begin:]

    def live_sessions(self) -> list[Session]:
        """All of them."""
        return list(self.sessions._sessions.values())

    def check_pages(self) -> None:
        """Every used page is held by a living sequence, by two only where they share a prompt, or by a session."""
        holders = defaultdict(list)
        for sequence in self.loop.running:
            for index, page in enumerate(sequence.pages.tolist()):
                holders[page].append((sequence.state.request.request_id, index, index < sequence.state.shared_pages))
        for session in self.live_sessions():
            assert session.computed <= max(session.settled - 1, session.tokens.size - 1, 0)
            assert session.pages.size >= pages_for(session.computed)
            for page in session.pages.tolist():
                holders[page].append((session.session_id, page, False))
        for pages in self.sessions._orphaned:
            for page in pages.tolist():
                holders[page].append(("orphaned", page, False))
        assert self.pool.pages_used == len(holders)
        idle = [session.pages.size for session in self.live_sessions() if not session.holder]
        assert self.sessions.idle_pages == sum(idle)
        for page, held in holders.items():
            assert len(held) == 1 or (len(set(held)) == 1 and held[0][2]), f"page {page} is held by {held}"

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        """The answer so far."""
        wanted = (request_id, choice)
        return [e.token for e in self.events if isinstance(e, TokenChosen) and (e.request_id, e.choice) == wanted]

    def reason(self, request_id: str, choice: int = 0) -> str:
        """Why the choice finished."""
        [event] = [
            e for e in self.events if isinstance(e, ChoiceFinished) and (e.request_id, e.choice) == (request_id, choice)
        ]
        return event.reason.value

    def finished(self, request_id: str) -> RequestFinished:
        """The last event of a request that has ended."""
        [event] = [e for e in self.events if isinstance(e, RequestFinished) and e.request_id == request_id]
        assert [e for e in self.events if e.request_id == request_id][-1] is event
        return event


def make_request(request_id: str = "a", prompt: int | list[int] = 5, max_tokens: int | None = 4, **fields) -> Request:
    """A request; `prompt` is its length or its tokens. Fields of sampling and stopping go where they belong."""
    tokens = np.arange(prompt) * 7 % VOCABULARY if isinstance(prompt, int) else prompt
    sampling = {k: fields.pop(k) for k in list(fields) if k in SamplingParameters.__dataclass_fields__}
    stopping = {k: fields.pop(k) for k in list(fields) if k in StoppingParameters.__dataclass_fields__}
    return Request(
        request_id,
        np.array(tokens, np.int32),
        SamplingParameters(**sampling),
        StoppingParameters(max_tokens, **stopping),
        **fields,
    )


@pytest.fixture
def request_of() -> Callable[..., Request]:
    return make_request


@pytest.fixture
def bench_of() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def score_of() -> Callable[[np.ndarray, int], float]:
    return score
