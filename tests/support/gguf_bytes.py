"""Builds GGUF headers byte by byte, sound or not: whatever a test says is written as it is said.

offset  field
0       magic, version (u32), tensor count (u64), key/value count (u64)
24      key/values, tensor infos, padding, data
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
"""Value types."""

FORMATS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}

TYPE_F32, TYPE_Q4_0, TYPE_Q4_K = 0, 2, 12
"""Tensor types."""


def u32(value: int) -> bytes:
    """Four bytes, little-endian."""
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    """Eight bytes, little-endian."""
    return struct.pack("<Q", value)


def string(text: bytes) -> bytes:
    """A length and the bytes."""
    return u64(len(text)) + text


def scalar(kind: int, value: float) -> bytes:
    """A value's type and its bytes."""
    return u32(kind) + struct.pack(FORMATS[kind], value)


def text(value: bytes) -> bytes:
    """A string value: type, length, bytes."""
    return u32(STRING) + string(value)


def array(kind: int, elements: Sequence[bytes], count: int | None = None) -> bytes:
    """An array value; `count` may lie."""
    return u32(ARRAY) + array_body(kind, elements, count)


def array_body(kind: int, elements: Sequence[bytes], count: int | None = None) -> bytes:
    """An array without its own value type: an element of a nested array."""
    return u32(kind) + u64(len(elements) if count is None else count) + b"".join(elements)


def key_value(key: bytes, value: bytes) -> bytes:
    """A key and a value (as `scalar`, `text` or `array` make it)."""
    return string(key) + value


def tensor_info(name: bytes, shape: Sequence[int], kind: int = TYPE_F32, offset: int = 0) -> bytes:
    """A tensor info."""
    return string(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


@dataclass
class GGUFBytes:
    """A file in parts; counts are those of the parts unless a test overrides them."""

    key_values: list[bytes] = field(default_factory=lambda: [key_value(b"general.architecture", text(b"llama"))])
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_value_count: int | None = None
    alignment: int = 32  # of the padding before the data; general.alignment is a key like any other

    def header(self) -> bytes:
        """Everything before the padding."""
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_value_count = len(self.key_values) if self.key_value_count is None else self.key_value_count
        front = self.magic + u32(self.version) + u64(tensor_count) + u64(key_value_count)
        return front + b"".join(self.key_values) + b"".join(self.tensors)

    def build(self) -> bytes:
        """The whole file."""
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data


def small_model() -> GGUFBytes:
    """A sound file with a value of every kind and two tensors."""
    return GGUFBytes(
        key_values=[
            key_value(b"general.architecture", text(b"llama")),
            key_value(b"general.name", text("Größe 1".encode())),
            *(key_value(b"scalar.%d" % kind, scalar(kind, 1)) for kind in FORMATS),
            key_value(b"tokens", array(STRING, [string(b"a"), string(b"\xff\xfe"), string(b"")])),
            key_value(b"scores", array(F32, [struct.pack("<f", 0.5), struct.pack("<f", -1)])),
            key_value(
                b"nested", array(ARRAY, [array_body(I8, [b"\x01", b"\xff"]), array_body(STRING, [string(b"b")])])
            ),
        ],
        tensors=[tensor_info(b"a.weight", [8, 2]), tensor_info(b"b.weight", [32, 2], TYPE_Q4_0, 64)],
        data=bytes(range(64)) + bytes(36),
    )


def padded_header(bytes_in_all: int) -> GGUFBytes:
    """A sound file of one F32 tensor [8] whose header, padding not counted, has so many bytes."""
    model = GGUFBytes(tensors=[tensor_info(b"a.weight", [8])], data=bytes(range(1, 33)))
    missing = bytes_in_all - len(model.header()) - len(key_value(b"pad", text(b"")))
    model.key_values.append(key_value(b"pad", text(bytes(missing))))
    assert len(model.header()) == bytes_in_all
    return model


def write_model(path: Path, model: GGUFBytes | None = None, tail: bytes = b"") -> Path:
    """Writes a model, `small_model` as a rule, and what follows its last tensor."""
    path.write_bytes((model or small_model()).build() + tail)
    return path
