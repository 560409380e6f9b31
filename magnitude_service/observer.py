"""What the engine, the model's files and the operating system report, put into metrics.

`count_step` runs on the engine thread and takes microseconds; `refresh_*` run when somebody looks, on the exporter's
thread, and may take a few milliseconds.
"""

from __future__ import annotations

import mmap
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from magnitude_service import metrics
from magnitude_service.metrics import Metrics
from magnitude_service.scheduling.load import Load, StepReport

STATUS = Path("/proc/self/status")
PAGE_MAP = Path("/proc/self/pagemap")

ENTRY_BYTES = 8
PRESENT = np.uint64(1 << 63)
"""A page's entry in /proc/self/pagemap, and its bit that says that the page is in this process' memory.
*Source*: Documentation/admin-guide/mm/pagemap.rst of Linux."""

RUN_PAGES = 4_096
RUNS_MAX = 64
"""A view of at most 1 GiB (pages of 4 KiB) is looked at whole."""


class SnapshotCounts(Protocol):
    """What a snapshot store has done, and what it holds; snapshot/statistics.py."""

    @property
    def saves(self) -> int: ...
    @property
    def restores(self) -> int: ...
    @property
    def compactions(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def dead_bytes(self) -> int: ...


def begin_model(observations: Metrics, model: str, finish_reasons: Sequence[str]) -> None:
    """Makes the counters of a model that serves from now on start at 0, so that their first increase is seen."""
    tokens = (metrics.PROMPT_TOKENS, metrics.CACHED_TOKENS, metrics.COMPLETION_TOKENS)
    lookups = (metrics.PREFIX_QUERIES, metrics.PREFIX_HITS)
    drafts = (metrics.DRAFT_PROPOSED, metrics.DRAFT_ACCEPTED)
    for metric in (*tokens, *lookups, *drafts, metrics.SLOW_READERS):
        observations.add(metric, 0, model)
    for reason in finish_reasons:
        observations.add(metrics.FINISHES, 0, model, reason)


def note_build(observations: Metrics, version: str, kernels: str) -> None:
    """What this server is."""
    observations.set(metrics.BUILD_INFO, 1, version, platform.python_version(), kernels)


def note_model(observations: Metrics, model: str, model_id: str, architecture: str, weight_type: str) -> None:
    """What is served under a name."""
    observations.set(metrics.MODEL_INFO, 1, model, model_id, architecture, weight_type)


def note_load(observations: Metrics, model: str, seconds: Mapping[str, float]) -> None:
    """How long each phase of the start took."""
    for phase, took in seconds.items():
        observations.set(metrics.LOAD_SECONDS, took, model, phase)


def note_pages(observations: Metrics, model: str, page_tokens: int, pages_total: int) -> None:
    """How the key/value cache is cut."""
    observations.set(metrics.PAGE_TOKENS, page_tokens, model)
    observations.set(metrics.CACHE_INFO, 1, model, str(page_tokens), str(pages_total))


def count_step(observations: Metrics, model: str, report: StepReport, weights_bytes: int = 0) -> None:
    """Counts one step under the model's name. `weights_bytes` are what a step reads of the weights; 0: not known."""
    observations.observe(metrics.STEP_SECONDS, report.seconds, model)
    observations.observe(metrics.STEP_ROWS, report.rows, model)
    for seconds in report.token_gaps:
        observations.observe(metrics.TOKEN_GAP_SECONDS, seconds, model)
    if report.is_decode and weights_bytes:
        observations.add(metrics.DECODE_READ_BYTES, weights_bytes, model)
        observations.add(metrics.DECODE_READ_SECONDS, report.seconds, model)


def refresh_load(observations: Metrics, model: str, load: Load) -> None:
    """Brings a model's load up to date."""
    observations.set(metrics.REQUESTS_RUNNING, load.running, model)
    observations.set(metrics.REQUESTS_WAITING, load.waiting, model)
    observations.set(metrics.PAGES_USED, load.pages_used, model)
    observations.set(metrics.PAGES, load.pages_total, model)
    observations.set(metrics.PAGES_IDLE, load.pages_idle, model)
    taken = load.pages_used - load.pages_idle
    observations.set(metrics.PAGES_RATIO, taken / load.pages_total if load.pages_total else 0.0, model)


def refresh_files(observations: Metrics, model: str, views: Sequence[NDArray[np.uint8]]) -> None:
    """Brings up to date how much of the mapped files is in memory, where Linux tells."""
    observations.set(metrics.MAPPED_BYTES, sum(view.nbytes for view in views), model)
    resident = [resident_part(view) for view in views]
    if None not in resident:
        observations.set(metrics.MODEL_RESIDENT_BYTES, sum(filter(None, resident)), model)


def refresh_process(observations: Metrics) -> None:
    """Brings memory and page faults of this process up to date."""
    for kind, size in resident_bytes().items():
        observations.set(metrics.RESIDENT_BYTES, size, kind)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    observations.set(metrics.PAGE_FAULTS, usage.ru_minflt, "minor")
    observations.set(metrics.PAGE_FAULTS, usage.ru_majflt, "major")


def refresh_snapshots(observations: Metrics, model: str, counts: SnapshotCounts) -> None:
    """Brings up to date what a model's snapshot store has done and holds."""
    observations.set(metrics.SNAPSHOT_SAVES, counts.saves, model)
    observations.set(metrics.SNAPSHOT_RESTORES, counts.restores, model)
    observations.set(metrics.SNAPSHOT_COMPACTIONS, counts.compactions, model)
    observations.set(metrics.SNAPSHOT_BYTES, counts.live_bytes, model, "live")
    observations.set(metrics.SNAPSHOT_BYTES, counts.dead_bytes, model, "dead")
    total = counts.live_bytes + counts.dead_bytes
    observations.set(metrics.SNAPSHOT_DEAD_RATIO, counts.dead_bytes / total if total else 0.0, model)


def resident_part(view: NDArray[np.uint8]) -> int | None:
    """How many bytes of a mapped view are in this process' memory; None where the system does not say.

    At most `RUNS_MAX` runs of pages are looked at, evenly spaced, which takes ten milliseconds however large the view.
    """
    if not view.nbytes or sys.platform != "linux":
        return None
    first = view.ctypes.data // mmap.PAGESIZE
    count = (view.ctypes.data + view.nbytes - 1) // mmap.PAGESIZE + 1 - first
    stride = max(RUN_PAGES, count // RUNS_MAX)
    seen = present = 0
    try:
        with PAGE_MAP.open("rb", buffering=0) as file:
            for page in range(first, first + count, stride):
                file.seek(page * ENTRY_BYTES)
                wanted = min(RUN_PAGES, first + count - page)
                entries = np.frombuffer(file.read(wanted * ENTRY_BYTES), np.uint64)
                seen += entries.size
                present += int(np.count_nonzero(entries & PRESENT))
    except OSError:
        return None
    return min(present * count // seen * mmap.PAGESIZE, view.nbytes) if seen else None


def resident_bytes() -> dict[str, int]:
    """Bytes of this process in memory: "anonymous", "file" (mapped files) and "shared". 0 where Linux does not say."""
    kinds = {"RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared"}
    found = dict.fromkeys(kinds.values(), 0)
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.partition(":")
        if name in kinds:
            found[kinds[name]] = int(value.split()[0]) << 10
    return found
