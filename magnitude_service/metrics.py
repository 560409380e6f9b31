"""Every metric once: name, type, unit, labels. Observations are kept here; the exporter reads `Metrics.samples`.

Label values come from closed sets (rpcs of the contract, gRPC codes, finish reasons, names of loaded models), so that
no client can make a new time series.
"""

from __future__ import annotations

import bisect
import enum
import threading
from collections.abc import Iterator
from dataclasses import dataclass

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKENS = (1.0, 8.0, 32.0, 128.0, 512.0, 2_048.0, 8_192.0, 32_768.0, 131_072.0)


class Kind(enum.Enum):
    """How a metric moves, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The name ends in its unit; `buckets` are a histogram's upper bounds."""

    name: str
    kind: Kind
    sentence: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


CALLS = Metric("magnitude_calls_total", Kind.COUNTER, "Calls that ended.", ("method", "code"))
CALL_SECONDS = Metric("magnitude_call_seconds", Kind.HISTOGRAM, "Duration of calls.", ("method",), SECONDS)
CALLS_RUNNING = Metric("magnitude_calls_running", Kind.GAUGE, "Calls that are open.", ("method",))
FINISHES = Metric("magnitude_finishes_total", Kind.COUNTER, "Answers that ended.", ("model", "reason"))
PROMPT_TOKENS = Metric("magnitude_prompt_tokens_total", Kind.COUNTER, "Tokens of prompts.", ("model",))
COMPLETION_TOKENS = Metric("magnitude_completion_tokens_total", Kind.COUNTER, "Generated tokens kept.", ("model",))
PROMPT_LENGTH = Metric("magnitude_prompt_tokens", Kind.HISTOGRAM, "Length of prompts.", ("model",), TOKENS)
QUEUE_SECONDS = Metric("magnitude_queue_seconds", Kind.HISTOGRAM, "Time in the queue.", ("model",), SECONDS)
PREFILL_SECONDS = Metric("magnitude_prefill_seconds", Kind.HISTOGRAM, "Time of the prompt.", ("model",), SECONDS)
FIRST_TOKEN_SECONDS = Metric(
    "magnitude_first_token_seconds", Kind.HISTOGRAM, "From arrival to the first token.", ("model",), SECONDS
)
STEP_SECONDS = Metric("magnitude_step_seconds", Kind.HISTOGRAM, "Duration of steps.", ("model",), SECONDS)
STEP_ROWS = Metric("magnitude_step_rows", Kind.HISTOGRAM, "Rows of steps.", ("model",), TOKENS)
REQUESTS_RUNNING = Metric("magnitude_requests_running", Kind.GAUGE, "Requests that run.", ("model",))
REQUESTS_WAITING = Metric("magnitude_requests_waiting", Kind.GAUGE, "Requests that wait.", ("model",))
PAGES_USED = Metric("magnitude_pages_used", Kind.GAUGE, "Key/value pages held.", ("model",))
PAGES_TOTAL = Metric("magnitude_pages_total", Kind.GAUGE, "Key/value pages in all.", ("model",))
RESIDENT_BYTES = Metric("magnitude_resident_bytes", Kind.GAUGE, "Memory of this process by kind.", ("kind",))
SLOW_READERS = Metric("magnitude_slow_readers_total", Kind.COUNTER, "Streams that failed for their reader.", ("model",))

METRICS: tuple[Metric, ...] = (
    *(CALLS, CALL_SECONDS, CALLS_RUNNING, FINISHES, PROMPT_TOKENS, COMPLETION_TOKENS, PROMPT_LENGTH),
    *(QUEUE_SECONDS, PREFILL_SECONDS, FIRST_TOKEN_SECONDS, STEP_SECONDS, STEP_ROWS),
    *(REQUESTS_RUNNING, REQUESTS_WAITING, PAGES_USED, PAGES_TOTAL, RESIDENT_BYTES, SLOW_READERS),
)
"""All of them, in the order of the exporter's page."""

SERIES_MAX = 1_000
"""Time series of one metric. Labels come from closed sets, so that reaching it is a mistake of ours."""


@dataclass(slots=True)
class Series:
    """One metric under one set of label values. `counts` has one place per bucket and one above the last."""

    value: float
    counts: list[int]


class Metrics:
    """The observations. Any thread may observe or read; a lock guards the table of series."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _series
        self._series: dict[Metric, dict[tuple[str, ...], Series]] = {metric: {} for metric in METRICS}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Moves a counter or a gauge by `amount`."""
        with self._lock:
            self._at(metric, labels).value += amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Sets a gauge."""
        with self._lock:
            self._at(metric, labels).value = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Counts a value into a histogram; its sum is `Series.value`."""
        with self._lock:
            series = self._at(metric, labels)
            series.value += value
            series.counts[bisect.bisect_left(metric.buckets, value)] += 1

    def samples(self) -> Iterator[tuple[Metric, tuple[str, ...], float, tuple[int, ...]]]:
        """Metric, label values, value (a histogram's sum) and counts per bucket, as they are now."""
        with self._lock:
            found = [
                (metric, labels, series.value, tuple(series.counts))
                for metric, table in self._series.items()
                for labels, series in table.items()
            ]
        yield from found

    def _at(self, metric: Metric, labels: tuple[str, ...]) -> Series:
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
        table = self._series[metric]
        if labels not in table:
            assert len(table) < SERIES_MAX, f"{metric.name} has {SERIES_MAX} time series"
            table[labels] = Series(0.0, [0] * (len(metric.buckets) + 1) if metric.buckets else [])
        return table[labels]
