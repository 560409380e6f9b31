"""What a scraper reads: real text over HTTP, with types, cumulative buckets and up-to-date gauges."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from magnitude_service.errors import PreconditionError
from magnitude_service.exporter import MetricsCollector, serve_metrics
from magnitude_service.metrics import CALL_SECONDS, CALLS, METRICS, PAGES_USED, Kind, Metrics


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.add(CALLS, 2, "Infer", "OK")
    metrics.add(CALLS, 1, "Infer", 'a"b\\c\n')
    for seconds in (0.001, 0.02, 0.02, 2_000.0):
        metrics.observe(CALL_SECONDS, seconds, "Infer")
    return metrics


def page(metrics: Metrics) -> str:
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics, lambda: metrics.set(PAGES_USED, 3, "m")))
    return generate_latest(registry).decode()


def test_every_metric_has_its_type_and_its_sentence_once_it_was_observed(metrics: Metrics) -> None:
    assert "magnitude_requests_running" not in page(metrics)
    for metric in METRICS:
        values = [f"a {label}" for label in metric.labels]
        (metrics.observe if metric.kind is Kind.HISTOGRAM else metrics.add)(metric, 1, *values)
    lines = page(metrics).splitlines()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind.value}" in lines
        assert f"# HELP {metric.name} {metric.sentence}" in lines


def test_counters_and_gauges_show_their_values(metrics: Metrics) -> None:
    lines = page(metrics).splitlines()
    assert 'magnitude_calls_total{code="OK",method="Infer"} 2.0' in lines
    assert 'magnitude_key_value_pages_used{model="m"} 3.0' in lines


def test_a_label_value_with_quotes_and_newlines_comes_back_whole(metrics: Metrics) -> None:
    families = {family.name: family for family in text_string_to_metric_families(page(metrics))}
    codes = {sample.labels["code"] for sample in families["magnitude_calls"].samples}
    assert codes == {"OK", 'a"b\\c\n'}


def test_the_buckets_of_a_histogram_are_cumulative_and_end_with_all(metrics: Metrics) -> None:
    families = {family.name: family for family in text_string_to_metric_families(page(metrics))}
    samples = families[CALL_SECONDS.name].samples
    buckets = {sample.labels["le"]: sample.value for sample in samples if sample.name.endswith("_bucket")}
    assert list(map(float, buckets)) == [*CALL_SECONDS.buckets, float("inf")]
    assert (buckets["0.005"], buckets["0.01"], buckets["0.025"], buckets["1800.0"]) == (1, 1, 3, 3)
    assert buckets["+Inf"] == 4
    assert list(buckets.values()) == sorted(buckets.values())
    totals = {sample.name.rsplit("_", 1)[1]: sample.value for sample in samples if "le" not in sample.labels}
    assert totals == {"count": 4, "sum": pytest.approx(2_000.041)}


def test_a_scraper_reads_the_page_over_http_while_others_observe(metrics: Metrics) -> None:
    port = _free_port()
    close = serve_metrics(metrics, lambda: None, "127.0.0.1", port)
    stop = threading.Event()

    def observe() -> None:
        while not stop.wait(0.0005):
            metrics.observe(CALL_SECONDS, 0.02, "Infer")

    observer = threading.Thread(target=observe)
    observer.start()
    try:
        for _ in range(20):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                families = list(text_string_to_metric_families(answer.read().decode()))
            [seconds] = [family for family in families if family.name == CALL_SECONDS.name]
            values = {sample.labels.get("le", sample.name): sample.value for sample in seconds.samples}
            assert values["+Inf"] == values[f"{CALL_SECONDS.name}_count"]
    finally:
        stop.set()
        observer.join()
        close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_port_that_is_taken_is_refused_by_name(metrics: Metrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreconditionError, match=f"Metrics cannot be served on 127.0.0.1:{port}: Address already"):
            serve_metrics(metrics, lambda: None, "127.0.0.1", port)


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["[::]", "[::1]"])
def test_an_ipv6_address_is_written_as_everywhere_else(metrics: Metrics, host: str) -> None:
    port = _free_port()
    close = serve_metrics(metrics, lambda: None, host, port)
    try:
        with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=10) as answer:
            assert b"magnitude_calls_total" in answer.read()
    finally:
        close()


def test_every_kind_of_metric_is_shown() -> None:
    assert {metric.kind for metric in METRICS} == set(Kind)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
