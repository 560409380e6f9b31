"""Generates GGUF files that mean harm, each with the error that it must get. No file is kept in the repository.

python -m tests.attacks.gguf.hostile_files FOLDER        writes them all
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from magnitude_service.errors import (
    IncompatibleVersionError,
    IntegrityError,
    MagnitudeError,
    UnsupportedModelError,
)
from tests.support import gguf_bytes as raw
from tests.support.gguf_bytes import GGUFBytes, key_value, tensor_info

LLAMA = key_value(b"general.architecture", raw.text(b"llama"))


@dataclass(frozen=True)
class Attack:
    """A hostile file: how to make it, and what must be said of it."""

    name: str
    build: Callable[[], bytes]
    error: type[MagnitudeError]
    message: str  # part of the error's text


def attacks() -> Iterator[Attack]:
    """Every attack."""
    yield from _lying_counts()
    yield from _names()
    yield from _values()
    yield from _alignments()
    yield from _shapes()
    yield from _places()
    yield from _strangers()
    yield from _large_ones()


def _damaged(name: str, build: Callable[[], bytes], message: str) -> Attack:
    return Attack(name, build, IntegrityError, message)


def _one_value(value: bytes) -> Callable[[], bytes]:
    return lambda: GGUFBytes(key_values=[key_value(b"k", value)]).build()


def _one_tensor(*tensors: bytes, data: int = 0, key_values: list[bytes] | None = None) -> Callable[[], bytes]:
    return lambda: GGUFBytes(key_values=key_values or [LLAMA], tensors=list(tensors), data=bytes(data)).build()


def _lying_counts() -> Iterator[Attack]:
    many = 2**63
    yield _damaged(
        "2^63 key/values in 24 bytes",
        lambda: GGUFBytes(key_values=[], key_value_count=many).header(),
        f"the key/value count at offset 16 is {many}",
    )
    yield _damaged(
        "2^64 - 1 tensors in 24 bytes",
        lambda: GGUFBytes(key_values=[], tensor_count=2**64 - 1).header(),
        "the tensor count at offset 8 is 18446744073709551615",
    )
    yield _damaged(
        "65,536 key/values in 24 bytes",
        lambda: GGUFBytes(key_values=[], key_value_count=65536).header(),
        "the key/value count at offset 16 needs at least 917504 bytes for 65536 entries, but only 0 bytes follow",
    )
    yield _damaged(
        "a string of 1 GiB with nothing behind it",
        _one_value(raw.u32(raw.STRING) + raw.u64(1 << 30)),
        "the length of the value of 'k' at offset 37 needs a string of 1073741824 bytes",
    )
    yield _damaged(
        "a string of 2^64 - 1 bytes",
        _one_value(raw.u32(raw.STRING) + raw.u64(2**64 - 1)),
        "needs a string of 18446744073709551615 bytes",
    )
    yield _damaged(
        "a key of 2^63 bytes", lambda: GGUFBytes(key_values=[raw.u64(many) + b"k" * 20]).build(), "the length of key 0"
    )
    yield _damaged(
        "2^61 f64, whose product wraps to 0",
        _one_value(raw.array(raw.F64, [], 2**61)),
        "the element count of the value of 'k' at offset 41 needs 2305843009213693952 elements of at least 8 bytes",
    )
    yield _damaged(
        "2^62 u32, whose product wraps to 0", _one_value(raw.array(raw.U32, [], 2**62)), "4611686018427387904 elements"
    )
    yield _damaged(
        "2^64 - 1 strings",
        _one_value(raw.array(raw.STRING, [], 2**64 - 1)),
        "18446744073709551615 elements of at least 8",
    )
    yield _damaged(
        "an array whose last string is longer than the file",
        _one_value(raw.array(raw.STRING, [raw.string(b"x"), raw.u64(2**40)])),
        "the length of string 1 of the value of 'k' at offset 58 needs a string of 1099511627776 bytes",
    )


def _names() -> Iterator[Attack]:
    twice = key_value(b"llama.block_count", raw.scalar(raw.U32, 1))
    yield _damaged(
        "the same key twice",
        lambda: GGUFBytes(key_values=[twice, LLAMA, twice]).build(),
        "the key 'llama.block_count' at offset 110 stands there a second time; it was first at offset 32",
    )
    yield _damaged(
        "an empty key",
        lambda: GGUFBytes(key_values=[key_value(b"", raw.scalar(raw.U8, 1)), LLAMA]).build(),
        "the length of key 0 at offset 24 is 0",
    )
    yield _damaged(
        "a key of 65,536 bytes",
        lambda: GGUFBytes(key_values=[key_value(b"k" * 65536, raw.scalar(raw.U8, 1))]).build(),
        "is 65536; at most 65535 bytes are allowed",
    )
    for label, name in (("a NUL", b"a\0b"), ("an escape sequence", b"a\x1b[2J"), ("half a character", b"a\xc3")):
        yield _damaged(
            f"{label} in a key",
            lambda name=name: GGUFBytes(key_values=[key_value(name, raw.scalar(raw.U8, 1))]).build(),  # type: ignore[misc]
            "the name of key 0 at offset 32 holds control characters or is not UTF-8",
        )
    yield _damaged(
        "the same tensor name twice",
        _one_tensor(tensor_info(b"a", [8]), tensor_info(b"a", [8], offset=32), data=64),
        "the name of tensor 'a' at offset 110 stands there a second time; it was first at offset 77",
    )
    yield _damaged("an empty tensor name", _one_tensor(tensor_info(b"", [8]), data=32), "the length of tensor 0")
    yield _damaged(
        "a tensor name of 65 bytes", _one_tensor(tensor_info(b"t" * 65, [8]), data=32), "is 65; at most 64 bytes"
    )
    yield _damaged(
        "a NUL in a tensor name", _one_tensor(tensor_info(b"a\0", [8]), data=32), "the name of tensor 0 at offset"
    )


def _values() -> Iterator[Attack]:
    yield _damaged(
        "value type 13", _one_value(raw.u32(13) + bytes(8)), "the type of the value of 'k' at offset 33 is 13"
    )
    yield _damaged("value type 2^32 - 1", _one_value(raw.u32(2**32 - 1) + bytes(8)), "value types go from 0 to 12")
    yield _damaged(
        "an empty array of no type", _one_value(raw.array(99, [])), "the type of the elements of the value of 'k'"
    )
    yield _damaged(
        "a boolean of 2", _one_value(raw.u32(raw.BOOL) + b"\2"), "the value of 'k' at offset 37 is a boolean of value 2"
    )
    yield _damaged(
        "a boolean of 255 in an array", _one_value(raw.array(raw.BOOL, [b"\0", b"\xff"])), "is a boolean of value 255"
    )
    yield _damaged(
        "100,000 nested arrays",
        _one_value(raw.u32(raw.ARRAY) + raw.array_body(raw.ARRAY, [], 1) * 100_000 + raw.array_body(raw.U8, [])),
        "the value of 'k' at offset 85 nests arrays deeper than 4 levels",
    )


def _alignments() -> Iterator[Attack]:
    for alignment in (0, 1, 3, 4, 24, 33, 2**22, 2**30, 2**31):
        key = key_value(b"general.alignment", raw.scalar(raw.U32, alignment))
        yield _damaged(
            f"an alignment of {alignment}",
            _one_tensor(tensor_info(b"a", [8]), data=32, key_values=[LLAMA, key]),
            f"'general.alignment' at offset 98 is {alignment}; it must be a power of two from 8 to 2097152",
        )
    for kind in (raw.U8, raw.I32, raw.U64, raw.F32, raw.BOOL):
        key = key_value(b"general.alignment", raw.scalar(kind, 1 if kind == raw.BOOL else 32))
        yield _damaged(
            f"an alignment of value type {kind}",
            _one_tensor(tensor_info(b"a", [8]), data=32, key_values=[LLAMA, key]),
            f"'general.alignment' at offset 98 has value type {kind}; it must be 4",
        )
    yield _damaged(
        "an alignment in words",
        _one_tensor(key_values=[LLAMA, key_value(b"general.alignment", raw.text(b"32"))]),
        "'general.alignment' at offset 106 has value type 8",
    )


def _shapes() -> Iterator[Attack]:
    def shaped(shape: list[int], kind: int = raw.TYPE_F32) -> Callable[[], bytes]:
        return _one_tensor(tensor_info(b"a", shape, kind), data=64)

    yield _damaged("a dimension of 0", shaped([8, 0]), "dimension 1 of tensor 'a' at offset 90 is 0")
    yield _damaged("a row of 0", shaped([0, 8]), "dimension 0 of tensor 'a' at offset 82 is 0")
    yield _damaged("no dimensions", shaped([]), "the dimension count of tensor 'a' at offset 78 is 0; 1 to 4")
    yield _damaged("five dimensions", shaped([8, 1, 1, 1, 1]), "the dimension count of tensor 'a' at offset 78 is 5")
    yield _damaged(
        "2^32 - 1 dimensions",
        _one_tensor(raw.string(b"a") + raw.u32(2**32 - 1) + bytes(64)),
        "the dimension count of tensor 'a' at offset 78 is 4294967295",
    )
    yield _damaged("2^64 elements, which wrap to 0", shaped([2**32, 2**32]), "makes more than 2^63 elements")
    yield _damaged("2^64 + 8 elements, which wrap to 8", shaped([(2**64 + 8) // 8, 8]), "makes more than 2^63 elements")
    yield _damaged("a dimension of 2^64 - 1", shaped([2**64 - 1]), "makes more than 2^63 elements")
    yield _damaged("2^62 float32, whose bytes wrap to 0", shaped([2**31, 2**31]), "the size of tensor 'a'")
    yield _damaged(
        "Q4_K with a row of 8",
        shaped([8], raw.TYPE_Q4_K),
        "dimension 0 of tensor 'a' at offset 82 is 8; rows of tensor type 12 are multiples of 256",
    )
    yield _damaged("Q4_0 whose elements fit but whose row does not", shaped([16, 4], raw.TYPE_Q4_0), "multiples of 32")
    for kind in (4, 5, 33, 42, 2**31, 2**32 - 1):
        yield Attack(
            f"tensor type {kind}",
            shaped([256], kind),
            UnsupportedModelError,
            f"the type of tensor 'a' at offset 90 is {kind}, which is no tensor type that we know",
        )


def _places() -> Iterator[Attack]:
    def placed(offset: int, data: int = 64, shape: int = 8) -> Callable[[], bytes]:
        return _one_tensor(tensor_info(b"a", [shape], offset=offset), data=data)

    yield _damaged("a misaligned tensor", placed(16), "is 16, not a multiple of the alignment 32")
    yield _damaged("a tensor behind the end", placed(128), "the file ends 64 bytes into its data section")
    yield _damaged("a tensor that is longer than the file", placed(0, 64, 17), "is 0, and the tensor has 68 bytes")
    yield _damaged("a tensor cut by one byte", placed(0, 31), "but the file ends 31 bytes into its data section")
    yield _damaged("a tensor without a data section", placed(0, 0), "the offset of tensor 'a' at offset 94")
    yield _damaged("an offset that wraps to the header", placed(2**64 - 128), "is 18446744073709551488, and the tensor")
    yield _damaged(
        "two tensors in one place",
        _one_tensor(tensor_info(b"a", [16]), tensor_info(b"b", [8], offset=32), data=64),
        "the offset of tensor 'b' at offset 127 places it at 192, inside tensor 'a' (160 to 224)",
    )
    yield _damaged(
        "a tensor around another one, named first",
        _one_tensor(tensor_info(b"a", [8], offset=32), tensor_info(b"b", [24]), data=96),
        "inside tensor 'b'",
    )


def _strangers() -> Iterator[Attack]:
    def stranger(
        name: str, content: bytes, message: str, error: type[MagnitudeError] = IncompatibleVersionError
    ) -> Attack:
        return Attack(name, lambda: content, error, message)

    sound = raw.small_model().build()
    swapped = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield stranger("a text", b"hello, this is no model", "is not a GGUF file: it begins with b'hell'")
    yield stranger("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")
    yield stranger("a zip archive", b"PK\x03\x04" + bytes(60), "zip archive or a PyTorch checkpoint")
    yield stranger("safetensors", raw.u64(64) + b'{"a":{}}' + bytes(64), "safetensors")
    yield stranger("a web page", b"<!DOCTYPE html><title>404</title>", "web page")
    yield stranger(
        "a big-endian file", swapped, "is a big-endian GGUF file: the version at offset 4 is 3 in big-endian"
    )
    yield stranger("a big-endian magic", b"FUGG" + sound[4:], "is a big-endian GGUF file: the magic at offset 0")
    yield stranger("version 1", b"GGUF" + raw.u32(1) + sound[8:], "is a GGUF file of version 1")
    for version in (0, 4, 2**31):
        yield stranger(
            f"version {version}", b"GGUF" + raw.u32(version) + sound[8:], f"the version at offset 4 is {version}"
        )
    yield stranger("three bytes", b"GGU", "the magic at offset 0 needs 4 bytes", IntegrityError)
    yield stranger("the magic alone", b"GGUF", "the version at offset 4 needs 4 bytes", IntegrityError)


def _large_ones() -> Iterator[Attack]:
    """Files that really hold what they claim, so that time and memory are spent on them."""
    value = raw.scalar(raw.U8, 1)

    def keys() -> bytes:
        names = [b"k" * 100 + b"%05d" % (index % 65_535) for index in range(65_536)]
        return GGUFBytes(key_values=[key_value(name, value) for name in names]).build()

    def tensors() -> bytes:
        infos = [
            tensor_info(b"t" * 50 + b"%06d" % (index % 131_071), [8], offset=32 * index) for index in range(131_072)
        ]
        return _one_tensor(*infos, data=32 * 131_072)()

    def colliding() -> bytes:
        return GGUFBytes(key_values=[key_value(name, value) for name in colliding_names(2_000)]).build()

    def strings() -> bytes:
        return GGUFBytes(
            key_values=[key_value(b"k", raw.array(raw.STRING, [bytes(8 * 4_000_000)], 4_000_001))]
        ).header()

    def too_many_strings() -> bytes:
        count = (1 << 22) + 1
        return GGUFBytes(key_values=[key_value(b"k", raw.array(raw.STRING, [bytes(8 * count)], count))]).header()

    yield _damaged("65,536 keys, the last of which is the first again", keys, "stands there a second time")
    yield _damaged("131,072 tensors, the last of which is the first again", tensors, "stands there a second time")
    yield _damaged("2,000 keys of one hash", colliding, "is one of many that were made to collide")
    yield _damaged("4,000,000 empty strings of 4,000,001", strings, "4000001 elements of at least 8 bytes")
    yield _damaged("more strings than any vocabulary has", too_many_strings, "is 4194305; at most 4194304 are read")


def colliding_names(count: int) -> list[bytes]:
    """Printable names of 16 bytes that `hash_of` in names.cpp maps to one number: the second word cancels whatever the
    first has left, and only first words count whose cancelling word happens to be printable."""
    draws = np.random.RandomState(1)
    found: list[bytes] = []
    while len(found) < count:
        first = draws.randint(ord("a"), ord("z") + 1, (1 << 20, 8), np.uint8).view("<u8").ravel()
        state = (first ^ np.uint64(16)) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(32)
        second = (state ^ np.uint64(0x5A5A5A5A5A5A5A5A)).view(np.uint8).reshape(-1, 8)
        is_printable = ((second >= 0x20) & (second < 0x7F)).all(axis=1)
        words = np.concatenate([first.view(np.uint8).reshape(-1, 8), second], axis=1)[is_printable]
        found += [word.tobytes() for word in words]
    return found[:count]


def write_all(folder: Path) -> list[tuple[Attack, Path]]:
    """Writes every attack into a folder."""
    written = []
    for index, attack in enumerate(attacks()):
        path = folder / f"{index:03d}.gguf"
        path.write_bytes(attack.build())
        written.append((attack, path))
    return written


if __name__ == "__main__":
    for _attack, _path in write_all(Path(sys.argv[1])):
        print(f"{_path}  {_attack.name}")
