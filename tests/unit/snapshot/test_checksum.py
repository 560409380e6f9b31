from __future__ import annotations

import random
import sys
import threading

import google_crc32c
import numpy as np
import pytest

from magnitude_service.snapshot._snapshot import crc32c_by, crc32c_implementations
from magnitude_service.snapshot.checksum import Buffer, byte_view, crc32c, crc32c_of_pieces, memory

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
    data = np.random.default_rng(1).bytes((1 << 20) + 17)
    assert crc32c(memoryview(data)) == crc32c(data[99:], crc32c(data[:99]))


@pytest.mark.parametrize("nbytes", [0, 1, 99, 1000, 1001, 65_537])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 1 << 20])
def test_the_checksums_of_pieces_and_of_all_are_found_at_once(nbytes: int, piece_bytes: int) -> None:
    data = np.random.default_rng(nbytes).bytes(nbytes)
    pieces = [data[begin : begin + piece_bytes] for begin in range(0, nbytes, piece_bytes)]
    assert crc32c_of_pieces(data, piece_bytes) == (crc32c(data), [crc32c(piece) for piece in pieces])


def test_the_best_implementation_of_this_machine_comes_first_and_the_portable_one_last() -> None:
    names = crc32c_implementations()
    assert names == [name for name in ("avx512", "sse42", "arm", "table") if name in names]
    assert names[-1] == "table"
    data = bytes(range(256)) * 9
    assert crc32c(data) == crc32c_by(names[0], data)
    with pytest.raises(ValueError, match="no such implementation"):
        crc32c_by("none", b"")


@pytest.mark.parametrize("name", ["avx512", "sse42", "arm", "table"])
def test_every_implementation_agrees_with_googles_for_every_length_start_and_register(name: str) -> None:
    if name not in crc32c_implementations():
        pytest.skip(f"this machine has no {name}")
    chance = random.Random(1)
    data = memoryview(chance.randbytes(70_000))
    lengths = (*range(1100), 3071, 3072, 4095, 4096, 6143, 6144, 6145, 12_287, 12_288, 65_535, 65_536, 69_990)
    for length in lengths:
        begin, crc = chance.randrange(10), chance.getrandbits(32)
        part = bytes(data[begin : begin + length])
        assert crc32c_by(name, data[begin : begin + length], crc) == google_crc32c.extend(crc, part), length


def test_every_bit_counts_in_every_implementation() -> None:
    data = bytearray(1500)
    for name in crc32c_implementations():
        found = set()
        for bit in range(0, len(data) * 8, 7):
            data[bit // 8] ^= 1 << bit % 8
            found.add(crc32c_by(name, data))
            data[bit // 8] ^= 1 << bit % 8
        assert len(found) == -(-len(data) * 8 // 7)


def test_a_long_checksum_leaves_the_interpreter_to_others() -> None:
    data = bytes(64 << 20)
    is_done, rounds = threading.Event(), 0

    def sum_slowly() -> None:
        crc32c_by("table", data)
        is_done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody is asked to give it up
    try:
        thread = threading.Thread(target=sum_slowly)
        thread.start()
        while not is_done.wait(0.0001):
            rounds += 1
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert rounds > 2, "this thread ran meanwhile"


def test_what_has_no_bytes_in_a_row_is_refused() -> None:
    with pytest.raises((BufferError, ValueError)):
        crc32c(np.arange(10)[::2])
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]


def test_words_are_taken_as_their_bytes() -> None:
    words = np.arange(5, dtype=np.uint32)
    assert crc32c(words) == crc32c(words.tobytes())
