"""The table of metrics, and what is kept of observations."""

from __future__ import annotations

import math
import re
import time

import pytest

from magnitude_service.metrics import (
    CALL_SECONDS,
    CALLS,
    METRICS,
    PAGES_USED,
    SERIES_MAX,
    TOKEN_GAP_SECONDS,
    Kind,
    Metrics,
)

UNITS = (
    *("_seconds", "_bytes", "_per_second", "_tokens", "_rows", "_running", "_waiting", "_pages", "_used", "_idle"),
    "_ratio",
)
FAMILY_SUFFIXES = ("_total", "_count", "_sum", "_bucket")
"""What Prometheus adds to a family's name."""


def test_every_metric_is_named_once_with_its_unit_and_described() -> None:
    families = {metric.name.removesuffix("_total") for metric in METRICS}
    assert len(families) == len(METRICS), "a counter and another metric may not differ in _total alone"
    for metric in METRICS:
        assert re.fullmatch(r"magnitude_[a-z_]+", metric.name)
        assert metric.sentence.endswith(".")
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)


def test_counters_alone_end_in_total_and_everything_else_in_its_unit() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        if metric.kind is not Kind.COUNTER:
            assert metric.name.endswith((*UNITS, "_info")), metric.name
        assert not metric.name.removesuffix("_total").endswith(FAMILY_SUFFIXES), metric.name


def test_a_slow_prompt_has_a_bucket_of_its_own() -> None:
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM and metric.name.endswith("_seconds"):
            assert metric.buckets[-1] >= (30 if metric is TOKEN_GAP_SECONDS else 1_800), metric.name


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], tuple[float, tuple[int, ...]]]:
    return {(metric.name, labels): (value, counts) for metric, labels, value, counts in metrics.samples()}


def test_counters_add_up_and_gauges_take_the_last_value() -> None:
    metrics = Metrics()
    metrics.add(CALLS, 1, "Infer", "OK")
    metrics.add(CALLS, 2, "Infer", "OK")
    metrics.set(PAGES_USED, 7, "m")
    metrics.set(PAGES_USED, 5, "m")
    assert samples(metrics) == {
        (CALLS.name, ("Infer", "OK")): (3, ()),
        (PAGES_USED.name, ("m",)): (5, ()),
    }


def test_a_histogram_counts_a_value_in_the_first_bucket_that_holds_it() -> None:
    metrics = Metrics()
    for value in (0.001, 0.005, 0.006, 2_000.0):
        metrics.observe(CALL_SECONDS, value, "Infer")
    [(total, counts)] = samples(metrics).values()
    assert total == pytest.approx(2_000.012)
    assert (counts[0], counts[1], counts[-1]) == (2, 1, 1)
    assert sum(counts) == 4
    assert len(counts) == len(CALL_SECONDS.buckets) + 1


def test_labels_out_of_place_and_too_many_series_are_mistakes_of_ours() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError):
        metrics.add(CALLS, 1, "Infer")
    for index in range(SERIES_MAX):
        metrics.set(PAGES_USED, 1, str(index))
    with pytest.raises(AssertionError):
        metrics.set(PAGES_USED, 1, "one more")


def test_an_observation_takes_microseconds() -> None:
    metrics, count = Metrics(), 20_000
    best = math.inf
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            metrics.observe(TOKEN_GAP_SECONDS, 0.011, "model")
        best = min(best, (time.perf_counter() - begin) / count)
    assert best < 10e-6, f"{best * 1e6:.1f} µs"
