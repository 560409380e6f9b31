"""Every metric once: name, type, unit, labels. Observations are kept here; the exporter reads `Metrics.samples`.

Label values come from closed sets (rpcs of the contract, gRPC codes, reasons of our errors, finish reasons, names of
loaded models), so that no client can make a new time series.

Nothing here is shared between processes, and nothing stands in the way of several: a sample is plain data (name, label
values, value, counts per bucket) that a worker can send over any channel. Counters and histograms of workers add up
place by place; gauges are set by the one process that exports, from what it is told.
"""

from __future__ import annotations

import bisect
import enum
import threading
from collections.abc import Iterator
from dataclasses import dataclass

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0)
"""Up to half an hour: a long prompt on a small processor takes that long."""

TOKEN_SECONDS = (0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = (1.0, 8.0, 32.0, 128.0, 512.0, 2_048.0, 8_192.0, 32_768.0, 131_072.0)


class Kind(enum.Enum):
    """How a metric moves, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric, equal to itself alone. The name ends in its unit; `buckets` are a histogram's upper bounds."""

    name: str
    kind: Kind
    sentence: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, sentence: str, *labels: str) -> Metric:
    return Metric(f"magnitude_{name}_total", Kind.COUNTER, sentence, labels)


def _gauge(name: str, sentence: str, *labels: str) -> Metric:
    return Metric(f"magnitude_{name}", Kind.GAUGE, sentence, labels)


def _histogram(name: str, sentence: str, label: str, buckets: tuple[float, ...] = SECONDS) -> Metric:
    return Metric(f"magnitude_{name}", Kind.HISTOGRAM, sentence, (label,), buckets)


# Calls, of every rpc
CALLS = _counter("calls", "Calls that ended, by gRPC status.", "method", "code")
CALLS_RUNNING = _gauge("calls_running", "Calls that are open.", "method")
CALL_SECONDS = _histogram("request_duration_seconds", "Duration of calls, from their message to their end.", "method")
ERRORS = _counter("request_errors", "Calls that failed, by the reason that the caller was told.", "method", "reason")

# Requests for answers
REQUESTS_RUNNING = _gauge("requests_running", "Requests that run.", "model")
REQUESTS_WAITING = _gauge("requests_waiting", "Requests in the queue.", "model")
FINISHES = _counter("finishes", "Answers that ended, by their finish reason.", "model", "reason")
PROMPT_TOKENS = _counter("prompt_tokens", "Tokens of prompts.", "model")
CACHED_TOKENS = _counter("cached_tokens", "Tokens of prompts and sessions that were computed before.", "model")
# Only a session's own history is looked up: pages are not found by what prompts have in common. In tokens, as other
# servers count.
PREFIX_QUERIES = _counter(
    "prefix_cache_queries", "Tokens of sessions that requests went on with, looked up in kept pages.", "model"
)
PREFIX_HITS = _counter("prefix_cache_hits", "Those of them that were found there, and not computed again.", "model")
COMPLETION_TOKENS = _counter("generated_tokens", "Generated tokens that were kept.", "model")
# Both count what an answer's Usage says.
DRAFT_PROPOSED = _counter(
    "draft_proposed_tokens", "Tokens that speculation proposed: 0, this server does not speculate.", "model"
)
DRAFT_ACCEPTED = _counter("draft_accepted_tokens", "Those of them that were accepted.", "model")
PROMPT_LENGTH = _histogram("prompt_length_tokens", "Length of prompts.", "model", TOKENS)
QUEUE_SECONDS = _histogram("queue_seconds", "From arrival to the start of the prompt.", "model")
PREFILL_SECONDS = _histogram("prefill_seconds", "From the start of the prompt to its end.", "model")
DECODE_SECONDS = _histogram("decode_seconds", "From the first token to the end.", "model")
FIRST_TOKEN_SECONDS = _histogram("time_to_first_token_seconds", "From arrival to the first token.", "model")
TOKEN_GAP_SECONDS = _histogram(
    "time_between_tokens_seconds", "From one token of an answer to its next.", "model", TOKEN_SECONDS
)
END_TO_END_SECONDS = _histogram("end_to_end_seconds", "From arrival to the end of the answers.", "model")
SLOW_READERS = _counter("slow_readers", "Streams that failed because nobody read them.", "model")

# The engine
STEP_SECONDS = _histogram("step_seconds", "Duration of steps.", "model")
STEP_ROWS = _histogram("step_rows", "Rows (tokens) of steps.", "model", TOKENS)
PAGES = _gauge("key_value_pages", "Key/value pages in all.", "model")
PAGES_USED = _gauge("key_value_pages_used", "Key/value pages that are held.", "model")
PAGES_IDLE = _gauge(
    "key_value_pages_idle", "Those of them that idle sessions have: a request that lacks pages gets them.", "model"
)
PAGES_RATIO = _gauge(
    "key_value_usage_ratio",
    "Share of the key/value pages that are held and not idle, 0 to 1: what a request cannot get.",
    "model",
)
PAGE_TOKENS = _gauge("key_value_page_size_tokens", "Tokens of a key/value page.", "model")
CACHE_INFO = _gauge(
    "key_value_cache_info",
    "Always 1; size in tokens and number of pages as labels, under the names that the Gateway API Inference Extension "
    "reads.",
    *("model", "block_size", "num_gpu_blocks"),
)
DECODE_READ_BYTES = _counter(
    "decode_read_bytes",
    "Weights that steps of generated tokens alone have read: each weight once per step, by the model's program.",
    "model",
)
DECODE_READ_SECONDS = _counter(
    "decode_read_seconds", "Time of those steps; the quotient of the two rates is the read rate.", "model"
)
READ_RATE = _gauge(
    "memory_read_bytes_per_second",
    "How fast the engine's threads can stream the weights, measured once while this server computed nothing, and too "
    "low where others computed; absent until then.",
    "model",
)

# The model's file, and the process
LOAD_SECONDS = _gauge("model_load_time_seconds", "How long each phase of the start took.", "model", "phase")
MAPPED_BYTES = _gauge("model_mapped_bytes", "Bytes of the model's files that are mapped.", "model")
MODEL_RESIDENT_BYTES = _gauge(
    "model_resident_bytes", "Those of them that are in this process' memory; sampled above 1 GiB.", "model"
)
RESIDENT_BYTES = _gauge("resident_bytes", "Memory of this process by kind.", "kind")
PAGE_FAULTS = _counter("page_faults", "Page faults of this process; major ones waited for the disk.", "kind")

# Saved sessions
SNAPSHOT_SAVES = _counter("snapshot_saves", "Versions of sessions that were saved.", "model")
SNAPSHOT_RESTORES = _counter("snapshot_restores", "Versions of sessions that were read back.", "model")
SNAPSHOT_COMPACTIONS = _counter("snapshot_compactions", "Compactions of the state file.", "model")
SNAPSHOT_BYTES = _gauge("snapshot_bytes", "Bytes of the state file that are live, and that are dead.", "model", "kind")
SNAPSHOT_DEAD_RATIO = _gauge("snapshot_dead_ratio", "Share of the state file's bytes that are dead, 0 to 1.", "model")

# What runs
BUILD_INFO = _gauge("build_info", "Always 1; what this server is.", "version", "python", "kernels")
MODEL_INFO = _gauge("model_info", "Always 1; what is served.", "model", "model_id", "architecture", "weight_type")

METRICS: tuple[Metric, ...] = tuple(found for found in list(vars().values()) if isinstance(found, Metric))
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
        """Sets a gauge, or a counter that somebody else counts."""
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
