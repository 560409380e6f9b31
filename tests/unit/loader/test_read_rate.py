"""The read rate is one of memory: more bytes take more time, and a few are no trouble."""

from __future__ import annotations

import numpy as np
import pytest

from magnitude_service.loader import read_rate
from magnitude_service.loader.read_rate import measure_read_rate


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_view_is_read_at_a_rate_that_memory_can_have(threads: int) -> None:
    view = np.ones(64 << 20, np.uint8)
    assert 1e8 < measure_read_rate(view, threads) < 1e13


@pytest.mark.parametrize("nbytes", [32, 33, 4_097])
def test_a_view_of_a_few_bytes_at_any_address_has_a_rate(nbytes: int) -> None:
    block = np.ones(nbytes + 3, np.uint8)
    assert measure_read_rate(block[3:], 4) > 0


def test_every_word_of_the_view_is_read_in_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def took(parts: list[np.ndarray]) -> float:
        read.append(sum(part.nbytes for part in parts))
        return 2.0 - len(read) / 10

    monkeypatch.setattr(read_rate, "_read_seconds", took)
    view = np.ones(1 << 16, np.uint8)
    rate = measure_read_rate(view, 3)
    assert read == [read[0]] * read_rate.PASSES
    assert view.nbytes - 16 <= read[0] <= view.nbytes
    assert rate == pytest.approx(read[0] / (2.0 - read_rate.PASSES / 10)), "the fastest pass counts"
