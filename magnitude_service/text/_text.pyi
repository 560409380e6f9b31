"""The native tokenizers; the C++ is in csrc/."""

import enum

import numpy as np
from numpy.typing import NDArray

UNICODE_VERSION: str
"""Of the table that says which character is a letter, a number or white space."""

SPECIAL_TOKEN_BYTES_MAX: int
"""A vocabulary with a longer control or user-defined token is refused."""

PRE_TOKENIZERS: tuple[str, ...]
"""The values of `tokenizer.ggml.pre` that we know."""

class TokenType(enum.Enum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6

def classes_of_code_points(count: int) -> bytes:
    """The class of each code point in [0, count): 0 other, 1 letter, 2 number, 3 white space."""

def pieces(pre_tokenizer: str, text: bytes) -> list[bytes]:
    """What a pre-tokenizer cuts a text into."""

class BytePairTokenizer:
    """Byte-level byte-pair encoding over token texts that stay where they are.

    *Lifetime*: keeps `data`, `token_offsets` and `token_lengths` alive and reads them; nothing else.
    *Raises*: IntegrityError or UnsupportedModelError for what the file holds, InvalidRequestError for an id out of
    range, ExhaustedError where memory ends.
    """

    def __init__(
        self,
        *,
        data: NDArray[np.uint8],
        token_offsets: NDArray[np.uint64],
        token_lengths: NDArray[np.uint32],
        token_types: NDArray[np.uint8],
        merge_data: NDArray[np.uint8],
        merge_offsets: NDArray[np.uint64],
        merge_lengths: NDArray[np.uint32],
        pre_tokenizer: str,
        control_texts: list[bytes],
    ) -> None: ...
    def encode(self, segments: list[tuple[bytes, bool]]) -> NDArray[np.int32]:
        """The ids of the segments' text, one text; the flag says whether control tokens are recognised in a segment."""
    def decode(self, ids: NDArray[np.int64], render_special: bool) -> bytes: ...
    def token_text(self, id: int) -> bytes: ...
    def token_type(self, id: int) -> TokenType: ...
    def is_control(self, id: int) -> bool: ...
    def find(self, text: bytes) -> int | None: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def token_bytes_max(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
