"""Which tokens run next: a function of queues, free pages and options, without clock or I/O.

Admission is in order of rank, and a request is admitted with all the pages that its choices can ever need: nothing
dies of memory half way, and nobody is pre-empted. A request that does not fit yet holds up those behind it, so that
a large one is not starved by small ones. Its rank is its place in the order of arrival, moved forward by `waiting_max`
places per level of priority: higher goes first, and yet a request is overtaken by a bounded number of later ones.

A step has one row for every answer that is being generated, then prompt rows. These are bounded while answers are
being generated, so that running streams keep going. The oldest prompt gets half of them and the others share the
rest evenly, so that a short prompt does not wait for the whole of a long one, and every prompt is at last the oldest.
"""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from magnitude_service.scheduling.options import SchedulingOptions
from magnitude_service.scheduling.sequence import Chunk, RequestState, Sequence
from magnitude_service.scheduling.session import Session


class Schedule(NamedTuple):
    """What the next step does: `admitted` get their pages, then `chunks` are computed."""

    admitted: list[RequestState]
    chunks: list[Chunk]


def rank(state: RequestState, options: SchedulingOptions) -> tuple[int, int]:
    """The key that the queue is sorted by, smallest first."""
    return state.arrival - state.request.priority * options.waiting_max, state.arrival


def plan(
    running: abc.Sequence[Sequence],
    waiting: abc.Iterable[RequestState],
    pages_free: int,
    options: SchedulingOptions,
) -> Schedule:
    """The next step. `running` are the living sequences in order of admission, `waiting` is sorted by `rank`.

    With anything running or waiting there is at least one chunk, but for sequences whose pages are still being loaded.
    """
    admitted = admit(waiting, options.sequences_max - len(running), pages_free)
    sequences = [*running, *(sequence for state in admitted for sequence in state.living)]
    sequences = [sequence for sequence in sequences if sequence.loading is None]
    chunks = [sequence.chunk(1) for sequence in sequences if sequence.is_decoding]
    if len(chunks) == len(sequences):
        return Schedule(admitted, chunks)
    rows_left = options.rows_max - len(chunks)
    if chunks:
        rows_left = min(rows_left, options.prefill_rows_while_decoding)
    scored_left = options.output_rows_max - len(sequences)  # each sequence is sure of one output row
    prefilling = [s for s in sequences if not s.is_decoding and not s.is_waiting_for_prompt]
    shares = share_rows([s.prompt_length - s.computed for s in prefilling], rows_left)
    for sequence, share in zip(prefilling, shares, strict=True):
        rows = min(share, scored_left + 1) if sequence.state.request.prompt_logprobs else share
        if rows:
            chunk = sequence.chunk(rows)
            chunks.append(chunk)
            scored_left -= max(len(chunk.scored) + chunk.samples - 1, 0)
    return Schedule(admitted, chunks)


def admit(waiting: abc.Iterable[RequestState], sequences_left: int, pages_left: int) -> list[RequestState]:
    """The first of those that wait, as long as all their choices and pages fit."""
    admitted = []
    for state in waiting:
        sequences_left -= len(state.living)
        pages_left -= state.pages_needed
        if sequences_left < 0 or pages_left < 0:
            break
        admitted.append(state)
    return admitted


def pages_short(waiting: abc.Iterable[RequestState], sequences_left: int, pages_free: int) -> int:
    """How many pages the requests lack that there are places for."""
    needed = 0
    for state in waiting:
        sequences_left -= len(state.living)
        if sequences_left < 0:
            break
        needed += state.pages_needed
    return max(needed - pages_free, 0)


def to_strip(idle: abc.Iterable[Session], pages_short: int, used_before: float) -> list[Session]:
    """Idle sessions that lose their pages: those not used since `used_before`, and of the others, which come least
    recently used first, as many as have the pages that are short. Their tokens are computed again at their next use."""
    found = []
    for session in idle:
        if session.used_seconds <= used_before or (pages_short > 0 and session.pages.size):
            found.append(session)
            pages_short -= session.pages.size
    return found


def share_rows(wanted: abc.Sequence[int], rows: int) -> list[int]:
    """Splits `rows` among prompts that want so many each, oldest first.

    At least half goes to the oldest, if it wants that many; the others share the rest evenly; what one does not
    want goes to the oldest that does.
    """
    if not wanted:
        return []
    others = len(wanted) - 1
    oldest = rows - rows // 2 if others else rows
    even = (rows - oldest) // others if others else 0
    shares = [min(want, even if index else oldest) for index, want in enumerate(wanted)]
    left = rows - sum(shares)
    for index, want in enumerate(wanted):
        extra = min(left, want - shares[index])
        shares[index] += extra
        left -= extra
    return shares
