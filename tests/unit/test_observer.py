"""What the engine and the operating system report becomes metrics under the model's name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magnitude_service import metrics, observer
from magnitude_service.metrics import Metrics
from magnitude_service.observer import count_step, refresh_gauges, resident_bytes
from magnitude_service.scheduling.load import Load, StepReport


def values(observations: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(metric.name, labels): value for metric, labels, value, _ in observations.samples()}


def test_a_step_is_counted_with_its_time_and_rows() -> None:
    observations = Metrics()
    count_step(observations, "m", StepReport(rows=5, seconds=0.25))
    assert values(observations) == {
        (metrics.STEP_SECONDS.name, ("m",)): 0.25,
        (metrics.STEP_ROWS.name, ("m",)): 5,
    }


def test_gauges_show_the_load_of_the_moment() -> None:
    observations = Metrics()
    refresh_gauges(observations, "m", Load(running=1, waiting=2, pages_used=3, pages_total=4, tokens_per_second=5))
    found = values(observations)
    names = (
        "magnitude_requests_running",
        "magnitude_requests_waiting",
        "magnitude_pages_used",
        "magnitude_pages_total",
    )
    assert [found[name, ("m",)] for name in names] == [1, 2, 3, 4]


def test_resident_bytes_are_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nRssAnon:\t    10 kB\nRssFile:\t    20 kB\nRssShmem:\t     0 kB\nVmSwap:\t 5 kB\n")
    monkeypatch.setattr(observer, "STATUS", status)
    assert resident_bytes() == {"anonymous": 10_240, "file": 20_480, "shared": 0}


def test_memory_that_is_used_is_seen() -> None:
    if not observer.STATUS.exists():
        pytest.skip("only Linux tells the memory of a process by kind")
    before = resident_bytes()["anonymous"]
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert resident_bytes()["anonymous"] - before > 48 << 20
    del block


def test_a_system_that_does_not_say_has_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "STATUS", tmp_path / "none")
    assert resident_bytes() == {"anonymous": 0, "file": 0, "shared": 0}
