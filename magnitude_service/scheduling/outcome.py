"""Reads the result of a step back into its sequences: which events it means, and which choices ended."""

from __future__ import annotations

from collections import abc

from magnitude_service.engine.batch import RowStatus, StepResult
from magnitude_service.errors import InvalidRequestError, MagnitudeError
from magnitude_service.scheduling.request import (
    ChoiceFinished,
    Event,
    FinishReason,
    PromptProgress,
    TokenChosen,
    TokenLogprobs,
)
from magnitude_service.scheduling.sequence import Chunk, RequestState, Sequence


class StepOutcome:
    """What one step did to each sequence. Sequences have moved on; nothing was ended or freed yet.

    `failed` requests and `ended` choices are the caller's to end; their events, in `events`, are complete but for
    RequestFinished.
    """

    def __init__(self, result: StepResult) -> None:
        self.events: list[Event] = []
        self.ended: list[Sequence] = []
        self.failed: dict[RequestState, MagnitudeError] = {}
        self.tokens = 0
        """Tokens that were chosen, ending ones included."""
        self.token_gaps: list[float] = []
        """Seconds since the token before, for each of them that had one."""
        self._result = result
        self._tokens: list[int] = result.token.tolist()
        self._logprobs: list[float] = result.logprob.tolist()
        self._status: list[int] = result.status.tolist()

    def apply(self, chunks: abc.Iterable[Chunk], now: float) -> None:
        """Walks over the output rows in the order of `assemble`."""
        row = 0
        for chunk in chunks:
            rows = range(row, row + len(chunk.scored) + chunk.samples)
            row = rows.stop
            error = self._error(chunk, rows)
            if error is not None:
                self.failed.setdefault(chunk.sequence.state, error)
            if chunk.sequence.state not in self.failed:
                self._advance(chunk, rows, now)

    def _advance(self, chunk: Chunk, rows: range, now: float) -> None:
        sequence = chunk.sequence
        sequence.computed += chunk.rows
        if sequence.computed <= sequence.prompt_length:
            self._advance_prompt(chunk, rows, now)
        if chunk.samples:
            self._choose(chunk, rows[-1], now)
        elif sequence.generated_max == 0 and sequence.is_decoding:
            self._end(sequence, sequence.limit_reason, None)

    def _advance_prompt(self, chunk: Chunk, rows: range, now: float) -> None:
        """Reports progress, and lets the other choices begin behind the pages that are shared."""
        sequence = chunk.sequence
        state = sequence.state
        if sequence.computed <= state.prompt_computed:
            return
        state.prompt_computed = sequence.computed
        shared_tokens = min(sequence.computed, state.shared_tokens)
        for other in state.living:
            other.computed = max(other.computed, shared_tokens)
        if sequence.is_decoding:
            state.prompt_seconds = now
        top = state.request.top_logprobs
        logprobs = [self._row_logprobs(row, top) for row in rows[: len(chunk.scored)]]
        self.events.append(
            PromptProgress(
                state.request.request_id,
                sequence.computed,
                sequence.prompt_length,
                chunk.scored.start + 1 - state.history if chunk.scored else 0,
                logprobs,
            )
        )

    def _choose(self, chunk: Chunk, row: int, now: float) -> None:
        sequence, token = chunk.sequence, self._tokens[row]
        state = sequence.state
        self.tokens += 1
        if state.first_token_seconds is None:
            state.first_token_seconds = now
        if sequence.chosen_seconds is not None:
            self.token_gaps.append(now - sequence.chosen_seconds)
        sequence.chosen_seconds = now
        reason = sequence.accept(token)
        if reason is FinishReason.EOS or reason is FinishReason.STOP_TOKEN:
            self._end(sequence, reason, token)
            return
        logprobs = self._row_logprobs(row, state.request.top_logprobs)
        self.events.append(TokenChosen(state.request.request_id, sequence.choice, token, logprobs))
        if reason is not None:
            self._end(sequence, reason, None)

    def _end(self, sequence: Sequence, reason: FinishReason, token: int | None) -> None:
        self.events.append(ChoiceFinished(sequence.state.request.request_id, sequence.choice, reason, token))
        self.ended.append(sequence)

    def _row_logprobs(self, row: int, top: int) -> TokenLogprobs:
        if not top:
            return TokenLogprobs(self._logprobs[row])
        ids, logprobs = self._result.top_ids[row, :top], self._result.top_logprobs[row, :top]
        return TokenLogprobs(self._logprobs[row], tuple(zip(ids.tolist(), logprobs.tolist(), strict=True)))

    def _error(self, chunk: Chunk, rows: range) -> MagnitudeError | None:
        """What the first bad row of a chunk means for its request."""
        for row in rows:
            if self._status[row] != RowStatus.OK:
                return _row_error(RowStatus(self._status[row]), chunk)
        return None


def _row_error(status: RowStatus, chunk: Chunk) -> MagnitudeError:
    position = chunk.sequence.computed + chunk.rows
    if status is RowStatus.NO_CANDIDATE:
        return InvalidRequestError(
            f"Biases, allowed tokens and min_tokens together leave no token to choose at position {position}.",
            remedy="Allow at least one token that does not end the answer, or lower min_tokens.",
        )
    return MagnitudeError(
        f"The model gave a value that is not a number at position {position}, or no finite one at all.",
        remedy="Check the file with `magnitude inspect --check`; another cache type may keep values in range.",
        reason="LOGITS_NOT_FINITE",
    )
