"""A log on a thread of its own: in order, whole, bounded, and never in the way."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from magnitude_service.server.log_writer import BackgroundHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("magnitude", logging.INFO, __file__, 1, message, (), None)


def test_lines_are_written_in_order_and_all_are_there_after_close(pipe: tuple[int, int]) -> None:
    handler = BackgroundHandler(pipe[1])
    for number in range(100):
        handler.handle(record(f"line {number}"))
    handler.close()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == [f"line {number}" for number in range(100)]


def test_a_reader_that_stops_costs_lines_and_the_log_says_how_many(pipe: tuple[int, int]) -> None:
    handler = BackgroundHandler(pipe[1], lines_max=3)
    line = "x" * 100_000  # more than a pipe holds: the thread is held up by the first one
    for _ in range(10):
        handler.handle(record(line))
    received, missing = 0, b""
    while b"missing" not in missing:  # one line is in the thread's hands, three are queued
        missing = os.read(pipe[0], 1 << 20)
        received += missing.count(b"\n")
        if received >= 3:
            handler.handle(record("again"))
    handler.close()
    lost = int(missing.decode().split(" log lines are missing")[0].split("\n")[-1])
    assert 10 - 4 <= lost <= 10 - 3


def test_a_text_that_is_no_unicode_is_written_all_the_same(pipe: tuple[int, int]) -> None:
    handler = BackgroundHandler(pipe[1])
    handler.handle(record("a\ud800b"))
    handler.close()
    assert os.read(pipe[0], 1 << 16) == b"a\\ud800b\n"


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    handler = BackgroundHandler(writer)
    handler.handle(record("nobody hears it"))
    handler.close()
    os.close(writer)
