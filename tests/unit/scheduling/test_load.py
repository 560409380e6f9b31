"""The rate of tokens per second, over a clock that is set by hand."""

from __future__ import annotations

import pytest

from magnitude_service.scheduling.load import RateMeter


def steady(meter: RateMeter, begin: float, seconds: int, per_second: int) -> float:
    for tenth in range(1, seconds * 10 + 1):
        meter.add(per_second // 10, begin + tenth / 10)
    return begin + seconds


@pytest.mark.parametrize("seconds", [1, 3, 60])
def test_a_steady_rate_is_right_from_the_first_second_on(seconds: int) -> None:
    meter = RateMeter(begin=50.0)
    now = steady(meter, 50.0, seconds, per_second=200)
    assert meter.read(now) == pytest.approx(200, rel=0.02)


def test_a_rate_is_forgotten_in_silence() -> None:
    meter = RateMeter(begin=0.0)
    now = steady(meter, 0.0, 30, per_second=200)
    assert meter.read(now + 60) < 0.01


def test_nothing_counted_is_zero() -> None:
    meter = RateMeter(begin=5.0)
    assert meter.read(5.0) == 0.0
    assert meter.read(9.0) == 0.0
