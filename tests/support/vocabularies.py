"""Small byte-level vocabularies, as the header of a model file carries them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import numpy as np

from magnitude_service.formats.gguf import Metadata, parse_header
from magnitude_service.formats.metadata import DTYPES, ValueType
from magnitude_service.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_characters() -> list[str]:
    """The byte-level character of every byte, written from GPT-2's own definition, apart from the C++."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def metadata_of(entries: Mapping[str, object]) -> Metadata:
    """The metadata of a GGUF header that holds these keys, and no tensor."""
    body = b"".join(_string(key.encode()) + _value(value) for key, value in entries.items())
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + body
    return parse_header(header, source="test.gguf").metadata


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", ValueType.BOOL, value)
        case int():
            return struct.pack("<Iq", ValueType.I64, value)
        case str():
            return struct.pack("<I", ValueType.STRING) + _string(value.encode())
        case np.ndarray():
            type = next(type for type, dtype in DTYPES.items() if dtype == value.dtype)
            return struct.pack("<IIQ", ValueType.ARRAY, type, len(value)) + value.tobytes()
        case list():
            texts = [text.encode() if isinstance(text, str) else text for text in value]
            return struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, len(texts)) + b"".join(map(_string, texts))
    raise TypeError(f"no GGUF value for {value!r}")


def byte_pair_metadata(
    tokens: Iterable[str | bytes],
    merges: Iterable[str | bytes] = (),
    *,
    special: dict[str, int] | None = None,
    pre: str = "gpt-2",
    more: Mapping[str, object] | None = None,
) -> Metadata:
    """A vocabulary of `tokens`, then `special` (text: type). `more` are keys without "tokenizer.ggml."; None drops."""
    tokens, special = list(tokens), special or {}
    entries: dict[str, object] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*tokens, *special],
        "token_type": np.array([NORMAL] * len(tokens) + list(special.values()), np.int32),
        "merges": list(merges),
    } | dict(more or {})
    return metadata_of({f"tokenizer.ggml.{key}": value for key, value in entries.items() if value is not None})


def byte_pair_tokenizer(
    merges: Iterable[str] = (), *, special: dict[str, int] | None = None, pre: str = "gpt-2", **more: object
) -> Tokenizer:
    """A tokenizer of all bytes (ids 0 to 255 are the bytes) and the results of `merges`, in order."""
    merges = list(merges)
    tokens = [*byte_characters(), *(merge.replace(" ", "") for merge in merges)]
    return Tokenizer.from_metadata(byte_pair_metadata(tokens, merges, special=special, pre=pre, more=more))
