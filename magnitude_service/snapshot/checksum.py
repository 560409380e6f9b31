"""CRC-32C of anything that has bytes.

The work is done by google-crc32c (Apache-2.0) with the processor's own instruction, at about the speed of memory. It
holds the interpreter lock, so that long buffers are taken in slices: no other thread waits for longer than one.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
"""Whatever has bytes in a row."""

SLICE_BYTES = 1 << 20
"""About 0.1 ms of the interpreter lock."""


def crc32c(data: Buffer, crc: int = 0) -> int:
    """The CRC-32C of `data`, or of what `crc` is of with `data` behind it. Copies nothing."""
    if isinstance(data, bytes) and len(data) <= SLICE_BYTES:
        return cast(int, google_crc32c.extend(crc, data))
    view = byte_view(data)
    for begin in range(0, len(view), SLICE_BYTES):
        crc = google_crc32c.extend(crc, view[begin : begin + SLICE_BYTES])
    return crc


def byte_view(data: Buffer) -> NDArray[np.uint8]:
    """The same memory as bytes, read-only."""
    if (data.nbytes if isinstance(data, memoryview | np.ndarray) else len(data)) == 0:
        return np.empty(0, np.uint8)  # frombuffer refuses it
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = False
    return view


def memory(data: Buffer) -> memoryview:
    """The same memory, as system calls take it."""
    return byte_view(data).data if isinstance(data, np.ndarray) else memoryview(data).cast("B")
