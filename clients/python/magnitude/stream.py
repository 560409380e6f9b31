"""An answer as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import grpc

from magnitude.errors import Cancelled, call_error
from magnitude.retries import delay_seconds
from magnitude.v1 import inference_pb2


class Stream:
    """A streamed answer: an iterator over its events, or over its text. `started` and `finished` are set as they pass.

    Leaving a `with` early, or `cancel`, ends the request at the server.
    """

    def __init__(self, begin: Callable[[float | None], Any], timeout_seconds: float | None, *, attempts: int) -> None:
        """`begin` makes the call, with the seconds that it may take."""
        self._begin = begin
        self._attempts_left = attempts - 1
        self._deadline = Deadline(timeout_seconds)
        self._cancelled = threading.Event()
        self._call = begin(timeout_seconds)
        self.started: inference_pb2.StreamStarted | None = None
        self.finished: inference_pb2.StreamFinished | None = None

    def __iter__(self) -> Iterator[inference_pb2.StreamInferResponse]:
        for event in self._events():
            if event.HasField("started"):
                self.started = event.started
            elif event.HasField("finished"):
                self.finished = event.finished
            yield event

    def _events(self) -> Iterator[inference_pb2.StreamInferResponse]:
        """The call's events; of a call that was refused for now, those of the next attempt."""
        while True:
            try:
                for event in self._call:
                    self._attempts_left = 0
                    yield event
                return
            except grpc.RpcError as error:
                failure = call_error(error)
                delay = delay_seconds(failure, self._attempts_left, self._deadline.left())
                if delay is None:
                    raise failure from error
            self._attempts_left -= 1
            if self._cancelled.wait(delay):
                raise Cancelled(grpc.StatusCode.CANCELLED, "The call was cancelled.")
            self._call = self._begin(self._deadline.left())
            if self._cancelled.is_set():  # just now: it met the call before
                self._call.cancel()

    def texts(self, choice: int = 0) -> Iterator[str]:
        """The text of one choice, as it comes."""
        for event in self:
            if event.HasField("delta") and event.delta.index == choice and event.delta.text:
                yield event.delta.text

    def cancel(self) -> None:
        """Ends the request at the server."""
        self._cancelled.set()
        self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()


class Deadline:
    """When a call must be over."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._end = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def left(self) -> float | None:
        """Seconds until then; None: no bound."""
        return None if self._end is None else self._end - time.monotonic()
