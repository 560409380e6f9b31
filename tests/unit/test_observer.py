"""What the engine, the model's files and the operating system report becomes metrics under the model's name."""

from __future__ import annotations

import mmap
import os
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from magnitude_service import metrics, observer
from magnitude_service.metrics import Metrics
from magnitude_service.observer import (
    begin_model,
    count_step,
    note_pages,
    refresh_files,
    refresh_load,
    refresh_process,
    refresh_snapshots,
    resident_bytes,
    resident_part,
)
from magnitude_service.scheduling.load import Load, StepReport

needs_pagemap = pytest.mark.skipif(not observer.PAGE_MAP.exists(), reason="only Linux tells which pages are there")


def values(observations: Metrics) -> dict[tuple[str, ...], float]:
    return {(metric.name, *labels): value for metric, labels, value, _ in observations.samples()}


def test_a_step_is_counted_with_its_time_and_rows() -> None:
    observations = Metrics()
    count_step(observations, "m", StepReport(rows=5, seconds=0.25), weights_bytes=1_000)
    assert values(observations) == {(metrics.STEP_SECONDS.name, "m"): 0.25, (metrics.STEP_ROWS.name, "m"): 5}


def test_a_step_of_answers_alone_counts_what_it_read_and_the_time_between_tokens() -> None:
    observations = Metrics()
    count_step(observations, "m", StepReport(2, 0.25, token_gaps=(0.25, 0.5), is_decode=True), weights_bytes=1_000)
    found = values(observations)
    assert found[metrics.TOKEN_GAP_SECONDS.name, "m"] == 0.75
    assert found[metrics.DECODE_READ_BYTES.name, "m"] == 1_000
    assert found[metrics.DECODE_READ_SECONDS.name, "m"] == 0.25


def test_where_nobody_can_say_what_a_step_reads_nothing_is_said() -> None:
    observations = Metrics()
    count_step(observations, "m", StepReport(1, 0.25, is_decode=True), weights_bytes=0)
    assert (metrics.DECODE_READ_BYTES.name, "m") not in values(observations)


def test_counters_of_a_new_model_begin_at_nought() -> None:
    observations = Metrics()
    begin_model(observations, "m", ["EOS", "MAX_TOKENS"])
    found = values(observations)
    assert set(found.values()) == {0}
    assert (metrics.FINISHES.name, "m", "EOS") in found
    assert (metrics.COMPLETION_TOKENS.name, "m") in found
    assert (metrics.DRAFT_PROPOSED.name, "m") in found


def test_gauges_show_the_load_of_the_moment() -> None:
    observations = Metrics()
    refresh_load(observations, "m", Load(1, 2, pages_used=3, pages_total=4, tokens_per_second=5, pages_idle=2))
    note_pages(observations, "m", 32, 4)
    found = values(observations)
    assert {name.removeprefix("magnitude_"): value for (name, *_), value in found.items()} == {
        "requests_running": 1,
        "requests_waiting": 2,
        "key_value_pages_used": 3,
        "key_value_pages": 4,
        "key_value_pages_idle": 2,
        "key_value_usage_ratio": 0.25,
        "key_value_page_size_tokens": 32,
        "key_value_cache_info": 1,
    }
    assert found["magnitude_key_value_cache_info", "m", "32", "4"] == 1


@dataclass(frozen=True)
class Counts:
    saves: int = 3
    restores: int = 2
    compactions: int = 1
    live_bytes: int = 300
    dead_bytes: int = 100


def test_a_snapshot_store_shows_what_it_did_and_how_much_of_it_is_dead() -> None:
    observations = Metrics()
    refresh_snapshots(observations, "m", Counts())
    refresh_snapshots(observations, "m", Counts(saves=4))
    found = values(observations)
    assert found[metrics.SNAPSHOT_SAVES.name, "m"] == 4
    assert found[metrics.SNAPSHOT_BYTES.name, "m", "dead"] == 100
    assert found[metrics.SNAPSHOT_DEAD_RATIO.name, "m"] == 0.25
    refresh_snapshots(observations, "m", Counts(live_bytes=0, dead_bytes=0))
    assert values(observations)[metrics.SNAPSHOT_DEAD_RATIO.name, "m"] == 0


def test_page_faults_are_those_of_the_system() -> None:
    observations = Metrics()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    refresh_process(observations)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert before <= values(observations)[metrics.PAGE_FAULTS.name, "minor"] <= after


@needs_pagemap
@pytest.mark.parametrize("run_pages", [4_096, 1], ids=["whole", "sampled"])
def test_pages_of_a_mapped_file_count_once_they_are_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_pages: int
) -> None:
    monkeypatch.setattr(observer, "RUN_PAGES", run_pages)
    pages = 64 * 16
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(mmap.PAGESIZE) * pages)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_RANDOM)  # nothing is mapped around what is touched
        view = np.frombuffer(mapping, np.uint8)
        assert resident_part(view) == 0
        half = view.nbytes // 2
        assert int(view[: half : mmap.PAGESIZE].max()) >= 0
        found = resident_part(view)
        assert found is not None
        assert abs(found - half) <= view.nbytes // 8
        observations = Metrics()
        refresh_files(observations, "m", [view, view])
        assert values(observations)[metrics.MAPPED_BYTES.name, "m"] == 2 * view.nbytes
        assert values(observations)[metrics.MODEL_RESIDENT_BYTES.name, "m"] == 2 * found
        del view


def test_where_the_system_does_not_say_how_much_of_a_file_is_there_the_metric_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "PAGE_MAP", tmp_path / "none")
    observations = Metrics()
    refresh_files(observations, "m", [np.zeros(8, np.uint8)])
    assert values(observations) == {(metrics.MAPPED_BYTES.name, "m"): 8}
    assert resident_part(np.zeros(0, np.uint8)) is None


def test_resident_bytes_are_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nRssAnon:\t    10 kB\nRssFile:\t    20 kB\nRssShmem:\t     0 kB\nVmSwap:\t 5 kB\n")
    monkeypatch.setattr(observer, "STATUS", status)
    assert resident_bytes() == {"anonymous": 10_240, "file": 20_480, "shared": 0}


def test_memory_that_is_used_is_seen() -> None:
    if not observer.STATUS.exists():
        pytest.skip("only Linux tells the memory of a process by kind")
    before = resident_bytes()["anonymous"]
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert resident_bytes()["anonymous"] - before > 48 << 20
    del block


def test_a_system_that_does_not_say_has_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "STATUS", tmp_path / "none")
    assert resident_bytes() == {"anonymous": 0, "file": 0, "shared": 0}
