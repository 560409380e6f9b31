"""The strings of a GGUF array, left where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class StringArray:
    """Strings as offsets and lengths into a buffer; they are bytes and need not be UTF-8.

    *Shapes*: data u8 [bytes], offsets u64 [N], lengths u32 [N].
    *Lifetime*: `data` is a view that keeps the buffer, a mapped file as a rule, alive.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint32]

    @classmethod
    def of(cls, strings: Iterable[bytes]) -> StringArray:
        """An array of its own memory, for tests and tools."""
        parts = list(strings)
        lengths = np.array([len(part) for part in parts], np.uint32)
        ends = np.cumsum(lengths, dtype=np.uint64)
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends - lengths, lengths)

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> bytes:
        begin = int(self.offsets[index])
        return self.data[begin : begin + int(self.lengths[index])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))
