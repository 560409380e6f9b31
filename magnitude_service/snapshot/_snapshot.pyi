from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from magnitude_service.snapshot.record import Content, SegmentHeader

def crc32c(data: bytes | bytearray | memoryview | NDArray[Any], crc: int = 0) -> int:
    """The CRC-32C of `data`, or of what `crc` is of with `data` behind it. Long data is read without the interpreter
    lock."""

def crc32c_of_pieces(data: bytes | memoryview | NDArray[Any], piece_bytes: int) -> tuple[int, list[int]]:
    """The CRC-32C of `data`, and of each stretch of `piece_bytes` of it. Everything is read once, without the
    interpreter lock."""

def crc32c_implementations() -> list[str]:
    """Those that this machine can run, best first; `crc32c` takes the first."""

def crc32c_by(name: str, data: bytes | bytearray | memoryview | NDArray[Any], crc: int = 0) -> int:
    """As `crc32c`, by one of them. Raises ValueError for another name."""

def encode_body(header: bytes, contents: Sequence[Content]) -> tuple[tuple[bytes | memoryview, ...], int]:
    """The body of a SNAPSHOT whose StateHeader is `header`, in parts that are not copied: the envelope, then glue and
    bytes of each blob; and how many bytes all are."""

def segment_parts(header: SegmentHeader, body_parts: tuple[bytes | memoryview, ...]) -> list[bytes | memoryview]:
    """Header, body and end mark, in order; neighbours of less than a page are joined."""

def start_writeback(descriptor: int, offset: int, bytes: int) -> None:
    """Lets the disk begin with bytes that were written, without waiting for it. What fails, the next sync tells."""

def is_linked(descriptor: int) -> bool:
    """Whether an open file has a name. Raises OSError."""
