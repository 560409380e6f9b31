"""What the engine and the operating system report, put into metrics."""

from __future__ import annotations

from pathlib import Path

from magnitude_service import metrics
from magnitude_service.metrics import Metrics
from magnitude_service.scheduling.load import Load, StepReport

STATUS = Path("/proc/self/status")


def count_step(observations: Metrics, model: str, report: StepReport) -> None:
    """Counts one step under the model's name."""
    observations.observe(metrics.STEP_SECONDS, report.seconds, model)
    observations.observe(metrics.STEP_ROWS, report.rows, model)


def refresh_gauges(observations: Metrics, model: str, load: Load) -> None:
    """Brings the gauges up to date, when somebody looks."""
    observations.set(metrics.REQUESTS_RUNNING, load.running, model)
    observations.set(metrics.REQUESTS_WAITING, load.waiting, model)
    observations.set(metrics.PAGES_USED, load.pages_used, model)
    observations.set(metrics.PAGES_TOTAL, load.pages_total, model)
    for kind, size in resident_bytes().items():
        observations.set(metrics.RESIDENT_BYTES, size, kind)


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
