from typing import Any

from numpy.typing import NDArray

def crc32c(data: bytes | bytearray | memoryview | NDArray[Any], crc: int = 0) -> int:
    """The CRC-32C of `data`, or of what `crc` is of with `data` behind it. Long data is read without the interpreter
    lock."""

def crc32c_implementations() -> list[str]:
    """Those that this machine can run, best first; `crc32c` takes the first."""

def crc32c_by(name: str, data: bytes | bytearray | memoryview | NDArray[Any], crc: int = 0) -> int:
    """As `crc32c`, by one of them. Raises ValueError for another name."""
