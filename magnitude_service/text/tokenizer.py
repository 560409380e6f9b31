"""Tokenizers: text to ids and back, for the vocabulary that a model file carries.

The work is native (csrc/): an index over the token texts where they lie in the mapped file, without the interpreter
lock. `MODELS` maps each `tokenizer.ggml.model` to what builds it.

What is trusted: a chat template's own text may name control tokens; what a user typed may not. User-defined tokens
(`<tool_call>` of Qwen2.5) are plain words of the model's language and are recognised in both, as llama.cpp does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from magnitude_service.errors import IntegrityError, InvalidRequestError, UnsupportedModelError
from magnitude_service.text._text import PRE_TOKENIZERS, BytePairTokenizer, TokenType
from magnitude_service.text.special_ids import CONTROL_TEXTS, SpecialIds

if TYPE_CHECKING:
    from magnitude_service.formats.gguf import Metadata

TOKENS_KEY = "tokenizer.ggml.tokens"
TYPES_KEY = "tokenizer.ggml.token_type"
MERGES_KEY = "tokenizer.ggml.merges"
PRE_KEY = "tokenizer.ggml.pre"
MODEL_KEY = "tokenizer.ggml.model"


__all__ = ["MODELS", "Codec", "TokenType", "Tokenizer"]


class Codec(Protocol):
    """What every kind of tokenizer offers natively; `_text.pyi` says what each promises."""

    @property
    def adds_bos(self) -> bool: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def token_bytes_max(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    def encode(self, segments: list[tuple[bytes, bool]]) -> NDArray[np.int32]: ...
    def decode(self, ids: NDArray[np.int64], render_special: bool) -> bytes: ...
    def token_text(self, id: int) -> bytes: ...
    def token_type(self, id: int) -> TokenType: ...
    def is_control(self, id: int) -> bool: ...
    def find(self, text: bytes) -> int | None: ...


class Tokenizer:
    """Text to ids and back. Immutable, and safe from several threads at once.

    *Lifetime*: reads token texts from the metadata's buffer, and keeps it alive.
    """

    def __init__(self, codec: Codec, special_ids: SpecialIds) -> None:
        self._codec = codec
        self._special_ids = special_ids
        self.vocabulary_size = codec.vocabulary_size
        self.bos_id = special_ids.bos_id
        self.eos_id = special_ids.eos_id
        self.eog_ids = special_ids.eog_ids
        self.add_bos = special_ids.add_bos

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Tokenizer:
        """Builds the tokenizer that a model file describes.

        *Raises*: UnsupportedModelError, by name, for a tokenizer or pre-tokenizer that we do not have;
        IntegrityError for a vocabulary that contradicts itself.
        """
        model = metadata.text(MODEL_KEY, default="")
        if model not in MODELS:
            raise UnsupportedModelError(
                f"{MODEL_KEY} is '{model}'; supported: {', '.join(MODELS)}." if model else f"There is no {MODEL_KEY}.",
                remedy="Use a model with a supported tokenizer.",
                field=MODEL_KEY,
            )
        codec = MODELS[model](metadata)
        return cls(codec, SpecialIds.from_metadata(metadata, codec))

    def encode(self, text: bytes | str, *, parse_special: bool, add_special: bool = False) -> NDArray[np.int32]:
        """The ids of a text. With `parse_special` the texts of control tokens become those tokens.

        `add_special` adds what the model file asks for: BOS in front unless the text begins with it already, EOS
        behind in the same way. Bytes that are not UTF-8 are encoded as bytes; a byte that the vocabulary has no token
        for yields nothing (SmolLM2's lacks 21, such as 0x04), as in the tokenizers that models are trained with.
        *Raises*: InvalidRequestError for a string with surrogates, which no UTF-8 can carry.
        """
        return self.encode_segments([(text, parse_special)], add_special=add_special)

    def encode_segments(
        self, segments: Iterable[tuple[bytes | str, bool]], *, add_special: bool = False
    ) -> NDArray[np.int32]:
        """The ids of one text that comes in (text, is_trusted) segments; only trusted text yields control ids.

        Words and merges run across the boundaries as if there were none. A special token is recognised only inside a
        stretch of one kind, so untrusted text can neither become, complete nor break up a control token.
        """
        ids = self._codec.encode([(_utf8(text), is_trusted) for text, is_trusted in segments])
        return self._with_special(ids) if add_special else ids

    def decode(self, ids: ArrayLike, *, render_special: bool = False) -> bytes:
        """The bytes that the ids stand for; control tokens show only with `render_special`.

        The bytes of a part of an answer need not be whole UTF-8 characters.
        *Raises*: InvalidRequestError naming the first id that is out of range, its index and the bound.
        """
        return self._codec.decode(_id_array(ids), render_special)

    def token_bytes(self, id: int, *, render_special: bool = False) -> bytes:
        """The bytes that one token adds to a text; b"" for control tokens unless `render_special`."""
        return self.decode([id], render_special=render_special)

    def token_text(self, id: int) -> bytes:
        """The token as the vocabulary spells it: byte-level characters in UTF-8 (`Ġthe`), or a literal text."""
        return self._codec.token_text(_index(id))

    def token_type(self, id: int) -> TokenType:
        """The token's type; CONTROL for the well-known control texts, whatever the file says."""
        return self._codec.token_type(_index(id))

    def is_control(self, id: int) -> bool:
        """Whether the token is a control token: never made from untrusted text, shown as nothing."""
        return self._codec.is_control(_index(id))

    def find(self, text: bytes) -> int | None:
        """The id that the vocabulary spells like this, or None."""
        return self._codec.find(text)

    @functools.cached_property
    def token_bytes_max(self) -> int:
        """The most bytes of text that one token stands for: a longer text has more tokens than one, but for bytes that
        the vocabulary has no token for."""
        return self._codec.token_bytes_max

    @property
    def index_bytes(self) -> int:
        """Memory held beyond the mapped file."""
        return self._codec.index_bytes

    def _with_special(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        special = self._special_ids
        front = [special.bos_id] if special.add_bos and not (ids.size and ids[0] == special.bos_id) else []
        back = [special.eos_id] if special.add_eos and not (ids.size and ids[-1] == special.eos_id) else []
        return np.concatenate([np.array(part, np.int32) for part in (front, ids, back)]) if front or back else ids


def _byte_pair(metadata: Metadata) -> BytePairTokenizer:
    pre = metadata.text(PRE_KEY, default="")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{PRE_KEY} is '{pre}'; supported: {', '.join(PRE_TOKENIZERS)}." if pre else f"There is no {PRE_KEY}.",
            remedy="Use a model with a supported pre-tokenizer, or convert the model again if its file is an old one.",
            field=PRE_KEY,
        )
    tokens = metadata.strings(TOKENS_KEY)
    merges = metadata.strings(MERGES_KEY)
    if not len(tokens):
        raise IntegrityError(f"{TOKENS_KEY} is empty.", remedy="Convert the model again.", field=TOKENS_KEY)
    return BytePairTokenizer(
        data=tokens.data,
        token_offsets=tokens.offsets,
        token_lengths=tokens.lengths,
        token_types=_token_types(metadata, len(tokens)),
        merge_data=merges.data,
        merge_offsets=merges.offsets,
        merge_lengths=merges.lengths,
        pre_tokenizer=pre,
        control_texts=CONTROL_TEXTS,
    )


MODELS: dict[str, Callable[[Metadata], Codec]] = {
    "gpt2": _byte_pair,
}
"""The kinds of tokenizer by `tokenizer.ggml.model`. A new one is a function and a line here."""


def _token_types(metadata: Metadata, count: int) -> NDArray[np.uint8]:
    """One type per token; all NORMAL where the file gives none."""
    if TYPES_KEY not in metadata:
        return np.full(count, TokenType.NORMAL.value, np.uint8)
    numbers = metadata.numbers(TYPES_KEY, count=count)
    if numbers.dtype.kind not in "iu":
        raise IntegrityError(
            f"{TYPES_KEY} holds {numbers.dtype}; integers are needed.",
            remedy="Convert the model again.",
            field=TYPES_KEY,
        )
    types = numbers.astype(np.int64)
    type_max = max(type.value for type in TokenType)
    if (bad := np.flatnonzero((types < 0) | (types > type_max))).size:
        raise IntegrityError(
            f"{TYPES_KEY}[{bad[0]}] is {types[bad[0]]}; types go from 0 to {type_max}.",
            remedy="Convert the model again.",
            field=TYPES_KEY,
        )
    return types.astype(np.uint8)


def _utf8(text: bytes | str) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The text holds the surrogate U+{ord(text[error.start]):04X} at character {error.start}.",
            remedy="Send text that is valid Unicode.",
        ) from error


def _id_array(ids: ArrayLike) -> NDArray[np.int64]:
    try:
        array = np.asarray(ids)
        if array.size == 0:
            return np.empty(0, np.int64)
        if array.dtype.kind in "iu" and array.ndim == 1 and array.max() <= np.iinfo(np.int64).max:
            return np.ascontiguousarray(array, np.int64)
    except (OverflowError, ValueError, TypeError):
        pass  # numbers beyond 64 bits, ragged lists: refused below like everything else that is no list of ids
    raise InvalidRequestError("The ids are not a flat list of 64-bit integers.", remedy="Send token ids.")


def _index(id: int) -> int:
    return int(_id_array([id])[0])
