"""What is looked at when somebody scrapes, and when memory is measured."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from magnitude_service import metrics
from magnitude_service.engine.architectures import record
from magnitude_service.errors import UnavailableError
from magnitude_service.loader import MappedModel
from magnitude_service.loader.mmap_model_loader import MMapModelLoader
from magnitude_service.metrics import Metrics
from magnitude_service.monitoring import Monitoring
from magnitude_service.scheduling.load import Load, StepReport
from tests.support.tiny_models import write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> MappedModel:
    return MMapModelLoader().load(write_tiny_model(tmp_path / "M.gguf", tensor_type="Q8_0"))


class Watched:
    """A model that is watched, under a load that a test sets."""

    def __init__(self, model: MappedModel) -> None:
        self.observations = Metrics()
        self.load = Load(0, 0, 3, 4, 0.0)
        self.asked = threading.Event()
        self.monitoring = Monitoring(self.observations, "m")
        self.monitoring.watch(model, record(model), self.look, threads=2)

    def look(self) -> Load:
        self.asked.set()
        return self.load

    def value(self, metric: metrics.Metric, *labels: str) -> float | None:
        found = {(each, values): value for each, values, value, _ in self.observations.samples()}
        return found.get((metric, labels))


@pytest.fixture
def watched(model: MappedModel) -> Watched:
    return Watched(model)


def test_a_scrape_before_the_model_is_there_shows_the_process_alone() -> None:
    observations = Metrics()
    Monitoring(observations, "m").refresh()
    assert {metric for metric, _, _, _ in observations.samples()} == {metrics.RESIDENT_BYTES, metrics.PAGE_FAULTS}


def test_a_scrape_shows_the_load_and_the_files_of_the_moment(watched: Watched, model: MappedModel) -> None:
    watched.monitoring.refresh()
    assert watched.value(metrics.PAGES_RATIO, "m") == 0.75
    assert watched.value(metrics.MAPPED_BYTES, "m") == sum(view.nbytes for view in model.views)
    watched.load = Load(1, 2, 4, 4, 0.0)
    watched.monitoring.refresh()
    assert watched.value(metrics.REQUESTS_WAITING, "m") == 2


def test_steps_of_answers_count_the_weights_that_the_program_reads(watched: Watched, model: MappedModel) -> None:
    watched.monitoring.count_step(StepReport(1, 0.5, is_decode=True))
    found = watched.value(metrics.DECODE_READ_BYTES, "m")
    assert found is not None
    assert 0 < found < model.spec.tensor_bytes + 1


def test_memory_is_measured_once_as_soon_as_nothing_runs(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnitude_service.monitoring.IDLE_POLL_SECONDS", 0.001)
    watched.load = Load(1, 0, 3, 4, 0.0)
    watched.asked.clear()
    go = threading.Event()
    thread = threading.Thread(target=watched.monitoring.measure_when_idle, args=(go.wait,))
    thread.start()
    assert not watched.asked.is_set()
    go.set()
    assert watched.asked.wait(10)
    assert watched.value(metrics.READ_RATE, "m") is None
    watched.load = Load(0, 0, 0, 4, 0.0)
    thread.join(20)
    assert not thread.is_alive()
    rate = watched.value(metrics.READ_RATE, "m")
    assert rate is not None
    assert rate > 0


def test_a_measurement_that_a_request_fell_into_does_not_count(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnitude_service.monitoring.IDLE_POLL_SECONDS", 0.001)
    rates = iter([1.0, 2.0])

    def measure(*_: object) -> float:
        rate = next(rates)
        watched.load = Load(int(rate == 1.0), 0, 0, 4, 0.0)
        if rate == 1.0:
            threading.Timer(0.05, lambda: setattr(watched, "load", Load(0, 0, 0, 4, 0.0))).start()
        return rate

    monkeypatch.setattr("magnitude_service.loader.read_rate.measure_read_rate", measure)
    watched.monitoring.measure_when_idle()
    assert watched.value(metrics.READ_RATE, "m") == 2.0


def test_closing_ends_the_wait_for_a_quiet_moment_and_looks_at_nothing_any_more(
    watched: Watched, model: MappedModel
) -> None:
    watched.load = Load(1, 0, 3, 4, 0.0)
    thread = threading.Thread(target=watched.monitoring.measure_when_idle)
    thread.start()
    watched.monitoring.close()
    thread.join(20)
    assert not thread.is_alive()
    model.close()
    watched.monitoring.refresh()


def test_a_snapshot_store_that_was_closed_meanwhile_spoils_no_scrape(watched: Watched) -> None:
    def closed() -> metrics.Metrics:
        raise UnavailableError("closed", reason="CLOSED")

    watched.monitoring.watch_snapshots(closed)  # type: ignore[arg-type]
    watched.monitoring.refresh()
    assert watched.value(metrics.PAGES, "m") == 4
