"""Shows `Metrics` to Prometheus, on a port of its own. Alone imports `prometheus_client`, once it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from magnitude_service.errors import PreconditionError
from magnitude_service.metrics import Kind, Metric, Metrics


class MetricsCollector(Collector):
    """Turns the samples of the moment into metric families. `refresh` brings the gauges up to date first."""

    def __init__(self, metrics: Metrics, refresh: Callable[[], None]) -> None:
        self._metrics = metrics
        self._refresh = refresh

    def collect(self) -> Iterable[Family]:
        """Every metric that has a sample."""
        self._refresh()
        families: dict[Metric, Family] = {}
        for metric, labels, value, counts in self._metrics.samples():
            if metric not in families:
                families[metric] = _FAMILIES[metric.kind](metric.name, metric.sentence, labels=metric.labels)
            family = families[metric]
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(labels, buckets=_cumulative(metric, counts), sum_value=value)
            else:
                family.add_metric(labels, value)
        return families.values()


Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_FAMILIES: Mapping[Kind, type[Family]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _cumulative(metric: Metric, counts: tuple[int, ...]) -> list[tuple[str, float]]:
    """Prometheus' buckets: each counts everything up to its bound."""
    total, buckets = 0, []
    for bound, count in zip((*map(str, metric.buckets), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def serve_metrics(metrics: Metrics, refresh: Callable[[], None], host: str, port: int) -> Callable[[], None]:
    """Answers `GET /metrics` from a thread of its own; returns what ends that. `host` may be an IPv6 address in
    brackets, as grpc wants it.

    Raises: PreconditionError where the address cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics, refresh))
    try:
        server, thread = start_http_server(port, host.removeprefix("[").removesuffix("]"), registry=registry)
    except OSError as error:
        raise PreconditionError(
            f"Metrics cannot be served on {host}:{port}: {error.strerror}.",
            remedy="Choose another --metrics-port.",
            reason="ADDRESS_UNAVAILABLE",
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
