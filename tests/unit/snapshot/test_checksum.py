from __future__ import annotations

import numpy as np
import pytest

from magnitude_service.snapshot.checksum import SLICE_BYTES, Buffer, byte_view, crc32c, memory

VECTORS = {  # RFC 3720, B.4, and the usual check value
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    b"": 0,
}


def slow_crc32c(data: bytes) -> int:
    """The definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("data", VECTORS)
def test_the_published_vectors_hold(data: bytes) -> None:
    assert crc32c(data) == VECTORS[data] == slow_crc32c(data)


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)], ids=["b", "ba", "mv", "np"]
)
def test_every_kind_of_memory_has_the_same_checksum(make: type) -> None:
    data: Buffer = make(b"some bytes that are long enough")
    assert crc32c(data) == slow_crc32c(b"some bytes that are long enough")
    assert bytes(memory(data)) == b"some bytes that are long enough"
    assert not byte_view(data).flags.writeable


def test_slices_continue_each_other() -> None:
    data = np.random.default_rng(1).bytes(SLICE_BYTES + 17)
    assert crc32c(memoryview(data)) == crc32c(data[99:], crc32c(data[:99]))


def test_words_are_taken_as_their_bytes() -> None:
    words = np.arange(5, dtype=np.uint32)
    assert crc32c(words) == crc32c(words.tobytes())
