"""Calls that are measured in turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping


def repetitions(text: str) -> int:
    """A number of measured runs for argparse: there is no median of none."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: 1 or more runs are needed")
    return count


class Taken(list[float]):
    """Seconds of each call."""

    @property
    def median(self) -> float:
        """Half of them took longer."""
        return statistics.median(self)

    @property
    def p99(self) -> float:
        """One of a hundred took longer."""
        return sorted(self)[min(int(len(self) * 0.99), len(self) - 1)]

    def rate(self, size: int) -> str:
        """MB/s by the median, and the 99th percentile in milliseconds."""
        return f"{size / self.median / 1e6:,.0f} ({self.p99 * 1e3:.2f})"


TURN_SECONDS = 0.025
"""A turn is long enough that a call works with the caches that it has filled itself."""


def in_turns(seconds: float, count: int, calls: Mapping[str, Callable[[int], object]]) -> dict[str, Taken]:
    """What each call took, by name, in turns for so many seconds. In its turn a call is made with the numbers
    0…count - 1, again and again until the turn is over. The first turn of each is not measured; two are at least."""
    taken = {name: Taken() for name in calls}
    names = list(calls)
    for name in names:
        _turn(count, calls[name])
    end, turns = time.perf_counter() + seconds, 0
    while turns < 2 or time.perf_counter() < end:
        for name in names:
            taken[name] += _turn(count, calls[name])
        names.append(names.pop(0))
        turns += 1
    return taken


def _turn(count: int, call: Callable[[int], object]) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while not taken or time.perf_counter() < end:
        for number in range(count):
            begin = time.perf_counter()
            kept = call(number)
            taken.append(time.perf_counter() - begin)
            del kept  # what it held is given back outside of the measurement
    return taken
