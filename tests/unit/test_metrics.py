"""The table of metrics, and what is kept of observations."""

from __future__ import annotations

import re

import pytest

from magnitude_service.metrics import CALL_SECONDS, CALLS, METRICS, PAGES_USED, SERIES_MAX, Kind, Metrics

UNITS = ("_total", "_seconds", "_bytes", "_tokens", "_rows", "_running", "_waiting", "_used")


def test_every_metric_is_named_once_with_its_unit_and_described() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"magnitude_[a-z_]+", metric.name)
        assert metric.name.endswith(UNITS), metric.name
        assert metric.sentence.endswith(".")
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)


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
    for value in (0.001, 0.005, 0.006, 1_000.0):
        metrics.observe(CALL_SECONDS, value, "Infer")
    [(total, counts)] = samples(metrics).values()
    assert total == pytest.approx(1_000.012)
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
