"""The metrics port of one server with one model: what is looked at when, and by whom."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from magnitude_service import observer
from magnitude_service.errors import MagnitudeError
from magnitude_service.metrics import READ_RATE, Metrics
from magnitude_service.scheduling.load import Load, StepReport
from magnitude_service.scheduling.request import FinishReason

if TYPE_CHECKING:
    from magnitude_service.engine.program import Program
    from magnitude_service.loader import MappedModel

IDLE_POLL_SECONDS = 1.0
"""How often it is asked whether nothing runs, until the machine's read rate could be measured."""


class Monitoring:
    """Puts into `observations` what nobody counts by the way. `app` says when the model is there; any thread may call
    `refresh`."""

    def __init__(self, observations: Metrics, model: str) -> None:
        self._observations = observations
        self._name = model
        self._model: MappedModel | None = None
        self._load: Callable[[], Load] | None = None
        self._snapshots: Callable[[], observer.SnapshotCounts] | None = None
        self._weight_bytes = 0
        self._threads = 1
        self._closing = threading.Event()
        self._close_port: Callable[[], None] = lambda: None

    def open_port(self, host: str, port: int) -> None:
        """Answers scrapers from now on. Raises PreconditionError where the address cannot be had."""
        from magnitude_service.exporter import serve_metrics

        self._close_port = serve_metrics(self._observations, self.refresh, host, port)

    def watch(self, model: MappedModel, program: Program, load: Callable[[], Load], threads: int) -> None:
        """The model is there; to be called before its first step."""
        from magnitude_service.engine.batch import PAGE_TOKENS
        from magnitude_service.engine.weight_reads import weight_bytes_per_step

        self._weight_bytes = weight_bytes_per_step(program, model.spec.tensors)
        self._threads = threads
        self._model, self._load = model, load
        observer.begin_model(self._observations, self._name, [reason.value for reason in FinishReason])
        observer.note_pages(self._observations, self._name, PAGE_TOKENS, load().pages_total)

    def describe(self, model_id: str, weight_type: str, kernels: str, load_seconds: Mapping[str, float]) -> None:
        """What is served, by which kernels, and how long each phase of the start took."""
        from magnitude_service import __version__

        assert self._model is not None, "watch comes first"
        observer.note_build(self._observations, __version__, kernels)
        observer.note_model(self._observations, self._name, model_id, self._model.spec.architecture, weight_type)
        observer.note_load(self._observations, self._name, load_seconds)

    def watch_snapshots(self, counts: Callable[[], observer.SnapshotCounts]) -> None:
        """The model's snapshot store is there; `counts` is StateSnapshotManager.statistics."""
        self._snapshots = counts

    def count_step(self, report: StepReport) -> None:
        """Counts a step, on the engine thread."""
        observer.count_step(self._observations, self._name, report, self._weight_bytes)

    def refresh(self) -> None:
        """Brings every gauge up to date."""
        observer.refresh_process(self._observations)
        if self._model is not None and self._load is not None and not self._closing.is_set():
            observer.refresh_load(self._observations, self._name, self._load())
            observer.refresh_files(self._observations, self._name, self._model.views)
        if self._snapshots is not None and not self._closing.is_set():
            with contextlib.suppress(MagnitudeError):  # the store was closed a moment ago
                observer.refresh_snapshots(self._observations, self._name, self._snapshots())

    def measure_when_idle(self, wait: Callable[[], object] = lambda: None) -> None:
        """Measures once how fast weights can be read, after `wait` and as soon as nothing runs or waits here. The
        thread's priority should be that of the engine."""
        from magnitude_service.loader.read_rate import measure_read_rate

        assert self._model is not None, "watch comes first"
        wait()
        view = max(self._model.views, key=lambda each: each.nbytes)
        while not self._closing.is_set():
            if self._is_idle():
                rate = measure_read_rate(view, self._threads)
                if self._is_idle():
                    self._observations.set(READ_RATE, rate, self._name)
                    return
            self._closing.wait(IDLE_POLL_SECONDS)

    def close(self) -> None:
        """Closes the port; the model may go afterwards."""
        self._closing.set()
        self._close_port()

    def _is_idle(self) -> bool:
        assert self._load is not None, "watch comes first"
        load = self._load()
        return load.running == 0 and load.waiting == 0
