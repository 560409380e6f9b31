"""Stop strings: the answer ends where one of them appears, and none of it is shown before it is known not to be one.

Which match counts is decided as text arrives: the one that *ends* first, and among those that end together the longest.
So of "ab" and "abc" it is always "ab"; of "b" and "ab" it is "ab". The result does not depend on how the text was cut
into pieces.

The matcher is an automaton (Aho and Corasick, 1975): a state per prefix of a stop string, one step per character. Its
state is the longest suffix of the text that a stop string begins with, which is exactly what must be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from magnitude_service.errors import IntegrityError, InvalidRequestError

STOPS_MAX = 16
STOP_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class StopResult:
    """What one piece of text led to. Offsets are characters of the whole answer, counted from its beginning."""

    text: str
    """May be shown now; with a match, this is the last of it."""
    matched: str | None = None
    """The stop string that was found."""
    begin: int | None = None
    """Where it begins."""
    end: int | None = None
    """Where it ends; what was pushed beyond is not part of the answer."""


class StopMatcher:
    """Watches one answer. `offset` and `held` are its whole state: a session keeps them and gives them back."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False, held: str = "", offset: int = 0) -> None:
        """`held` and `offset` continue an earlier matcher of the same stop strings.

        *Raises*: InvalidRequestError for too many, too long or empty stop strings; IntegrityError when `held` is not
        what a matcher of these stop strings holds back.
        """
        _check(stops)
        self._automaton = _Automaton(stops)
        self._include_stop = include_stop
        self._held = ""
        self._state = 0
        self._offset = offset
        self._is_finished = False
        if held and self._restore(held) != held:
            raise IntegrityError(
                f"The saved text {held[:50]!r} is not the beginning of any of these stop strings.",
                remedy="Give the same stop strings as before.",
                field="held",
            )

    @property
    def held(self) -> str:
        """Text that came but was not shown, for a stop string may begin with it."""
        return self._held

    @property
    def offset(self) -> int:
        """Characters of the answer before `held`: those that were shown."""
        return self._offset

    def push(self, text: str) -> StopResult:
        """Takes the next piece of the answer. After a match, nothing more comes of what is pushed."""
        if self._is_finished:
            return StopResult("")
        automaton, state = self._automaton, self._state
        seen = self._held + text
        for index, character in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, character)
            if matched := automaton.matched[state]:
                return self._match(seen, matched, index)
        self._state = state
        shown = len(seen) - automaton.depth[state]
        self._held = seen[shown:]
        self._offset += shown
        return StopResult(seen[:shown])

    def finish(self) -> StopResult:
        """The answer ended without a stop string: what was held back may be shown."""
        result = StopResult(self._held)
        self._offset += len(self._held)
        self._held, self._state, self._is_finished = "", 0, True
        return result

    def _match(self, seen: str, matched: str, end: int) -> StopResult:
        begin = end - len(matched)
        shown = end if self._include_stop else begin
        first = self._offset
        self._held, self._state, self._is_finished = "", 0, True
        self._offset = first + shown
        return StopResult(seen[:shown], matched, first + begin, first + end)

    def _restore(self, held: str) -> str:
        """Puts the automaton where it was, and returns what it then holds back."""
        for character in held:
            self._state = self._automaton.step(self._state, character)
            if self._automaton.matched[self._state]:
                return ""
        self._held = held[len(held) - self._automaton.depth[self._state] :]
        return self._held


class _Automaton:
    """States are numbers, 0 the empty prefix. Memory and build time are linear in the length of the stop strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        """Length of the prefix that a state stands for."""
        self.matched: list[str] = [""]
        """The longest stop string that ends in a state, or ""."""
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character; steps back at most as often as it went forward before."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallback[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.matched.append("")
            state = self._next[state][character]
        self.matched[state] = stop

    def _link(self) -> None:
        """Sets each state's fallback: the longest proper suffix of its prefix that is a prefix too."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._next[state].items():
                self._fallback[following] = self.step(self._fallback[state], character)
                self.matched[following] = self.matched[following] or self.matched[self._fallback[following]]
                queue.append(following)


def _check(stops: Sequence[str]) -> None:
    if len(stops) > STOPS_MAX:
        raise InvalidRequestError(
            f"There are {len(stops)} stop strings; {STOPS_MAX} are allowed.",
            remedy="Send fewer.",
            field="stopping.stop_strings",
        )
    for index, stop in enumerate(stops):
        size = len(stop.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= STOP_BYTES_MAX:
            raise InvalidRequestError(
                f"Stop string {index} has {size} bytes; 1 to {STOP_BYTES_MAX} are allowed.",
                remedy="Change or remove it.",
                field=f"stopping.stop_strings[{index}]",
            )
