import numpy as np
from numpy.typing import NDArray

HEADER_BYTES_MAX: int
KEY_VALUES_MAX: int
TENSORS_MAX: int
KEY_BYTES_MAX: int
TENSOR_NAME_BYTES_MAX: int
ARRAY_ELEMENTS_MAX: int
ARRAY_DEPTH_MAX: int
DIMENSIONS_MAX: int
ALIGNMENT_MAX: int

class Defect:
    """Why a header is refused: "<field> at offset <offset> <problem>"."""

    @property
    def kind(self) -> str:
        """NOT_GGUF, FOREIGN_BYTE_ORDER, VERSION_1, UNKNOWN_VERSION, DAMAGED, LIMIT or UNSUPPORTED."""
    @property
    def field(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def problem(self) -> str: ...

class Value:
    """Where a value lies. Strings: `count` bytes at `offset`. Arrays: `count` elements from `offset`."""

    @property
    def type(self) -> int: ...
    @property
    def element_type(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def end(self) -> int: ...

class Scan:
    """The scan of a header; unless `defect` is None, nothing else may be asked. Keeps `data` alive."""

    def __init__(
        self,
        data: memoryview | NDArray[np.uint8] | bytes,
        *,
        file_bytes: int,
        allows_invalid_magic: bool,
        block_elements: NDArray[np.uint32],
        block_bytes: NDArray[np.uint32],
    ) -> None: ...
    @property
    def defect(self) -> Defect | None: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def header_bytes(self) -> int: ...
    @property
    def data_offset(self) -> int: ...
    @property
    def model_end(self) -> int: ...
    @property
    def key_count(self) -> int: ...
    def tensors(self) -> list[tuple[str, int, tuple[int, ...], int, int, int]]:
        """Name, type id, shape, offset in the file, bytes, bytes of a row; in file order."""
    def keys(self) -> list[str]:
        """The keys in file order."""
    def find(self, key: str) -> Value | None:
        """Where the value of a key lies."""

def string_table(
    data: NDArray[np.uint8], offset: int, count: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]] | Defect:
    """Offsets and lengths of the strings of an array whose first element is at `offset`."""

def array_at(data: NDArray[np.uint8], offset: int) -> Value | Defect:
    """The array whose element type stands at `offset`."""

class Mapping:
    """Read-only memory: a file under the SIGBUS guard, or a private copy. Unmapped with its last view."""

    @property
    def is_damaged(self) -> bool:
        """Whether a read met a page that the file no longer has."""
    @property
    def address(self) -> int: ...
    @property
    def view(self) -> NDArray[np.uint8]: ...
    @property
    def writable_view(self) -> NDArray[np.uint8]:
        """Only for memory from `allocate`, and only before `seal`."""
    def trim(self, bytes: int) -> int:
        """Gives back the whole pages behind the first `bytes`. Like `seal` and `lock`, returns 0 or an errno."""
    def seal(self) -> int: ...
    def lock(self) -> int: ...
    def populate(self) -> None:
        """Reads every page once."""

def map_file(descriptor: int, bytes: int) -> Mapping | int:
    """Maps the first `bytes` of a file; or an errno (EMFILE: the guard's table is full)."""

def allocate(bytes: int) -> Mapping | int:
    """Private zeros, writable until `seal`; or an errno."""
