"""The strings of a GGUF array, left where they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STRINGS_AT_ONCE = 4096


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

    def sha256(self) -> str:
        """SHA-256 of the lengths (u32, little-endian) and then of all bytes, in hexadecimal."""
        digest = hashlib.sha256(self.lengths.astype("<u4").tobytes())
        for begin in range(0, len(self), STRINGS_AT_ONCE):
            digest.update(b"".join(self[index] for index in range(begin, min(begin + STRINGS_AT_ONCE, len(self)))))
        return digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))
