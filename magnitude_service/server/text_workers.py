"""The threads that render, tokenize and spell tokens, and those that wait for disks: the event loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from magnitude_service.errors import ExhaustedError

WAITING_MAX = 512
"""Jobs that may wait for a thread; each holds its message."""

RETRY_SECONDS = 1.0

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class TextWorkers:
    """A few threads and a bounded queue. Only the event loop calls it."""

    def __init__(self, threads: int, name: str = "magnitude-text", waits_for: str = "their text to be read") -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waits_for = waits_for
        self._open = 0

    async def run(
        self, work: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """What `work` returns or raises, computed beside the loop. Raises ExhaustedError if too much waits."""
        if self._open >= WAITING_MAX:
            raise ExhaustedError(
                f"{WAITING_MAX} requests wait for {self._waits_for}.",
                remedy="Ask again in a moment.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._open += 1
        job = self._threads.submit(work, *arguments, **named)
        loop = asyncio.get_running_loop()
        job.add_done_callback(lambda _: self._closed_on(loop))
        return await asyncio.wrap_future(job)

    def close(self) -> None:
        """Lets the threads end, without waiting for what they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _closed_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._close_one)

    def _close_one(self) -> None:
        self._open -= 1
