"""One choice of a request in flight: tokens in, certain text out.

Decoding a token and matching stop strings takes microseconds, so it is done on the event loop: handed to the text
workers it would wait behind a prompt of megabytes. Stop strings are found one step late; the choice is cut back to the
token that completed the stop, and nothing after it is shown or counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnitude_service.errors import IntegrityError
from magnitude_service.scheduling.request import FinishReason, TokenLogprobs
from magnitude_service.scheduling.session import TextState
from magnitude_service.server.prepared import Prepared
from magnitude_service.server.served_models import Tokenizer
from magnitude_service.text.decoding import IncrementalDecoder
from magnitude_service.text.stops import StopMatcher


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """Why a choice ended, and the stop string or token that did it."""

    reason: FinishReason
    stop_string: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What was added to a choice since the last one: text, and the tokens that were generated."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]


LIMITS = frozenset({FinishReason.MAX_TOKENS, FinishReason.TIME_LIMIT, FinishReason.CANCELLED})
"""Reasons after which an answer could go on."""


class Answer:
    """One choice as it grows. The text of all its pieces is the answer.

    In a session, an answer that a limit ends keeps what it holds back, in `rest`: the next one may go on with it.
    """

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer) -> None:
        self.end: ChoiceEnd | None = None
        self.tokens_kept = 0
        self._tokenizer = tokenizer
        self._include_stop = prepared.include_stop
        self.rest = TextState()
        self._is_in_session = prepared.request.session is not None
        self._decoder = IncrementalDecoder(prepared.text.pending)
        self._text = [prepared.echo] if prepared.echo else []
        self._stops = self._matcher(prepared, prepared.text.held)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    def add(self, token: int, logprobs: TokenLogprobs | None) -> str:
        """Adds a token and returns the text that is now certain. A stop string in it ends the answer."""
        self.tokens_kept += 1
        self._token_ids.append(token)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        return self._match(self._decoder.push(self._tokenizer.token_bytes(token)))

    def finish(self, reason: FinishReason, token: int | None) -> str:
        """Ends the answer from below, and returns what was held back. A stop string in that wins."""
        if self._is_in_session and reason in LIMITS:
            self.rest = TextState(self._decoder.pending, self._stops.held)
            self.end = ChoiceEnd(reason, stop_token_id=token)
            return ""
        rest = ""
        if token is not None and reason is FinishReason.STOP_TOKEN and self._include_stop:
            rest = self._decoder.push(self._tokenizer.token_bytes(token, render_special=True))
        text = self._match(rest + self._decoder.finish())
        if self.end is None:
            held = self._stops.finish().text
            self._text.append(held)
            self.end = ChoiceEnd(reason, stop_token_id=token)
            text += held
        return text

    def _matcher(self, prepared: Prepared, held: str) -> StopMatcher:
        """Watches for the stop strings; what was held back for others, which it cannot be part of, is shown."""
        try:
            return StopMatcher(prepared.stop_strings, include_stop=prepared.include_stop, held=held)
        except IntegrityError:
            self._text.append(held)
            return StopMatcher(prepared.stop_strings, include_stop=prepared.include_stop)

    def _match(self, text: str) -> str:
        result = self._stops.push(text)
        if result.matched is not None:
            self.end = ChoiceEnd(FinishReason.STOP_STRING, stop_string=result.matched)
        if result.text:
            self._text.append(result.text)
        return result.text

    def take(self) -> Piece:
        """What was added since the last call."""
        piece = Piece("".join(self._text), self._token_ids, self._logprobs)
        self._text, self._token_ids, self._logprobs = [], [], []
        return piece
