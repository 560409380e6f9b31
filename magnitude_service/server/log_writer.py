"""Writes log lines on a thread of its own: a full pipe or a slow disk holds up that thread, and never the event loop.

At most `LINES_MAX` lines wait; what is over is counted, and the log says how many are missing when it goes on.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

LINES_MAX = 10_000

CLOSE_SECONDS = 1.0
"""How long the end of the process waits for its last lines."""


class BackgroundHandler(logging.Handler):
    """Writes to a file descriptor. *Lifetime*: `close`, which `logging` calls at exit, waits for what is queued; the
    descriptor stays open, and is not the buffered `sys.stderr`, whose lock the thread could otherwise take with it."""

    def __init__(self, descriptor: int, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(lines_max)
        self._lost = 0  # guarded by the handler's own lock, which `logging` holds around `emit`
        self._thread = threading.Thread(target=self._write_all, name="magnitude-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues the line, or counts it as lost."""
        line = self.format(record)
        try:
            if self._lost:
                self._lines.put_nowait(f"{self._lost} log lines are missing here: nobody read the log.\n".encode())
                self._lost = 0
            self._lines.put_nowait(f"{line}\n".encode("utf-8", "backslashreplace"))
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Waits a little for the lines that are queued, and ends."""
        super().close()
        try:
            self._lines.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                continue  # the reader is gone, or the disk is full: the next line may find it better
