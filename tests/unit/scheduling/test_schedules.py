"""Thousands of seeded schedules, each with submissions, aborts, deadlines and failures in random places."""

from __future__ import annotations

import contextlib
import logging
import random
from collections import defaultdict

import numpy as np
import pytest

from magnitude_service.engine.batch import RowStatus, StepPlan, StepResult
from magnitude_service.errors import ExhaustedError, MagnitudeError
from magnitude_service.scheduling.policy import rank
from magnitude_service.scheduling.request import ChoiceFinished, PromptProgress, RequestFinished, TokenChosen

SCHEDULES = 2000
STEPS_WITH_ARRIVALS = 12


class DiceExecutor:
    """Chooses at random; now and then a row has no result, or the whole step none."""

    def __init__(self, dice: random.Random, trouble: float) -> None:
        self.dice, self.trouble = dice, trouble
        self.plans: list[StepPlan] = []

    def step(self, plan: StepPlan) -> StepResult:
        self.plans[:] = [plan]
        if self.dice.random() < self.trouble:
            raise MagnitudeError("the dice say so")
        rows = plan.output_rows.size
        status = [RowStatus.NOT_FINITE if self.dice.random() < self.trouble / 4 else RowStatus.OK for _ in range(rows)]
        return StepResult(
            np.array([self.dice.randrange(97) for _ in range(rows)], np.int32),
            np.zeros(rows, np.float32),
            np.array(status, np.uint8),
            np.zeros((rows, 0), np.int32),
            np.zeros((rows, 0), np.float32),
        )


class Schedule:
    """One seeded run. `trouble` is the chance of aborts, deadlines and failures."""

    def __init__(self, bench_of, request_of, seed: int, trouble: float) -> None:
        self.dice = random.Random(seed)
        sequences_max = self.dice.randint(1, 6)
        self.bench = bench_of(
            pages_total=self.dice.randint(4, 24),
            context_tokens=128,
            sequences_max=sequences_max,
            rows_max=sequences_max + self.dice.randint(0, 40),
            output_rows_max=sequences_max + self.dice.randint(0, 9),
            prefill_rows_while_decoding=self.dice.randint(1, 20),
            waiting_max=4,
        )
        self.request_of, self.trouble = request_of, trouble
        self.bench.executor = self.bench.loop._executor = DiceExecutor(self.dice, trouble)
        self.requests: dict[str, object] = {}
        self.admitted: list = []

    def run(self) -> None:
        for _ in range(STEPS_WITH_ARRIVALS):
            for _ in range(self.dice.choice([0, 0, 1, 1, 2])):
                self._submit()
            if self.dice.random() < self.trouble:
                self._interfere()
            self._step()
        steps = 0
        while self.bench.loop.requests:
            self._step()
            steps += 1
            assert steps < 3000, "somebody starves"
        assert self.bench.pool.pages_used == 0

    def _submit(self) -> None:
        dice, name = self.dice, f"r{len(self.requests)}"
        troubled = dice.random() < self.trouble
        request = self.request_of(
            name,
            prompt=dice.choice([1, 5, 31, 32, 33, 64, dice.randint(1, 90)]),
            max_tokens=dice.choice([0, 1, 2, dice.randint(1, 20)]),
            choices=dice.randint(1, min(3, self.bench.options.sequences_max)),
            priority=dice.choice([0, 0, 0, 1, -1]),
            prompt_logprobs=dice.random() < 0.2,
            stop_token_ids=frozenset({dice.randrange(97)}),
            time_limit_seconds=dice.choice([None, 3.0]) if troubled else None,
            deadline_seconds=self.bench.now + dice.randint(0, 9) if troubled else None,
        )
        with contextlib.suppress(ExhaustedError):  # the pool of some schedules is too small for some requests
            self.bench.submit(request)
            self.requests[name] = request

    def _interfere(self) -> None:
        name = f"r{self.dice.randrange(len(self.requests) + 1)}"
        if name in self.requests:
            choice = self.dice.randrange(self.requests[name].choices)
            if self.dice.random() < 0.5:
                self.bench.commands.aborted.add(name)
            else:
                self.bench.commands.finished[name, choice] = self.dice.randint(0, 3)

    def _step(self) -> None:
        bench = self.bench
        before = [(s, s.computed, s.length) for s in bench.loop.running]
        events = bench.step()
        bench.now += 1.0
        self._check_progress(before, events)

    def _check_progress(self, before: list, events: list) -> None:
        """Every answer grew by a token, the oldest prompt by a row, and nobody waits whom a worse rank overtook."""
        loop = self.bench.loop
        for sequence, computed, length in before:
            if not sequence.ended and computed >= sequence.prompt_length:
                assert (sequence.computed, sequence.length) == (computed + 1, length + 1)
        prefilling = [(s, computed) for s, computed, _ in before if computed < s.prompt_length]
        if prefilling:
            oldest, computed = prefilling[0]
            assert oldest.ended or oldest.computed > computed
        assert [rank(s, loop._options) for s in loop.waiting] == sorted(rank(s, loop._options) for s in loop.waiting)
        if loop.waiting and not loop.running and not events:
            pytest.fail("an idle engine leaves a request waiting")


def check_events(schedule: Schedule) -> None:
    """The order that request.py promises, for every request."""
    by_request = defaultdict(list)
    for event in schedule.bench.events:
        by_request[event.request_id].append(event)
    assert by_request.keys() == schedule.requests.keys()
    for name, events in by_request.items():
        request = schedule.requests[name]
        assert isinstance(events[-1], RequestFinished)
        assert not any(isinstance(event, RequestFinished) for event in events[:-1])
        done = [event.done for event in events if isinstance(event, PromptProgress)]
        assert done == sorted(set(done))
        first_token = next((i for i, e in enumerate(events) if isinstance(e, TokenChosen)), None)
        if first_token is not None:
            assert any(isinstance(e, PromptProgress) and e.done == e.total for e in events[:first_token])
        for choice in range(request.choices):
            own = [e for e in events if isinstance(e, TokenChosen | ChoiceFinished) and e.choice == choice]
            assert not any(isinstance(event, ChoiceFinished) for event in own[:-1])
            assert sum(isinstance(event, TokenChosen) for event in own) <= request.stopping.max_tokens


@pytest.mark.parametrize("trouble", [0.0, 0.25])
def test_whatever_happens_pages_are_kept_and_everybody_gets_on(bench_of, request_of, caplog, trouble: float) -> None:
    caplog.set_level(logging.CRITICAL)
    for seed in range(SCHEDULES // 2):
        try:
            schedule = Schedule(bench_of, request_of, seed, trouble)
            schedule.run()
            check_events(schedule)
            if not trouble:
                assert all(event.error is None for event in schedule.bench.events if isinstance(event, RequestFinished))
        except BaseException:
            print(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(8))
def test_crowding_never_changes_an_answer(bench_of, request_of, seed: int) -> None:
    dice = random.Random(seed)
    requests = [
        request_of(
            f"r{index}",
            prompt=[dice.randrange(97) for _ in range(dice.randint(1, 80))],
            max_tokens=dice.randint(1, 30),
            choices=dice.randint(1, 3),
            seed=dice.randrange(2**64),
            min_tokens=1,
            stop_token_ids=frozenset({dice.randrange(97)}),
            prompt_logprobs=dice.random() < 0.5,
            frequency_penalty=dice.choice([0.0, 0.5]),
            penalty_window=dice.randint(0, 50),
        )
        for index in range(10)
    ]
    alone = {}
    for request in requests:
        bench = bench_of()
        bench.run(request)
        alone[request.request_id] = [bench.tokens(request.request_id, c) for c in range(request.choices)]
    crowd = bench_of(pages_total=24, rows_max=dice.randint(9, 60), sequences_max=4, output_rows_max=9)
    for request in requests:
        crowd.submit(request)
        if dice.random() < 0.7:
            crowd.step()
    crowd.run()
    assert alone == {r.request_id: [crowd.tokens(r.request_id, c) for c in range(r.choices)] for r in requests}
