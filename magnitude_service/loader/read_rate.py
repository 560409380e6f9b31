"""How fast this machine streams a model's weights: the roof over decoding, which reads them all for each token."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

SAMPLE_BYTES_MAX = 256 << 20
"""Far more than a cache holds, and a few hundredths of a second of a machine's memory."""

PASSES = 6
"""The best counts: whatever else the machine does can only make one slower."""


def measure_read_rate(view: NDArray[np.uint8], threads: int) -> float:
    """Bytes per second at which so many threads together read the beginning of a view, in the best of a few passes.

    A view that is not in memory yet is read from the disk by the first pass.
    """
    count = min(view.nbytes, SAMPLE_BYTES_MAX) // 8
    offset = -view.ctypes.data % 8
    words = view[offset : offset + (count - 1) * 8].view(np.uint64)
    parts = np.array_split(words, threads)
    return max(words.nbytes / _read_seconds(parts) for _ in range(PASSES))


def _read_seconds(parts: list[NDArray[np.uint64]]) -> float:
    # A reduction by OR is a loop of wide loads, and NumPy gives up the interpreter lock for it.
    readers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
    begin = time.perf_counter()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return time.perf_counter() - begin
