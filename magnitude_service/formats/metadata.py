"""The key/values of a GGUF header: nothing is decoded before somebody asks for it.

Source: ggml/docs/gguf.md, `gguf_metadata_kv_t`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import IntegrityError
from magnitude_service.formats import _formats
from magnitude_service.formats.string_array import StringArray


class ValueType(enum.IntEnum):
    """Types of values, by the id that files carry."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


DTYPES: Final[Mapping[ValueType, np.dtype[np.generic]]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
"""The NumPy type of every value of fixed size."""

INTEGERS: Final = frozenset(
    {
        *(ValueType.U8, ValueType.I8, ValueType.U16, ValueType.I16),
        *(ValueType.U32, ValueType.I32, ValueType.U64, ValueType.I64),
    }
)
REALS: Final = frozenset({ValueType.F32, ValueType.F64})

SHOWN_CHARACTERS = 80
SHOWN_ELEMENTS = 4


class _Required(enum.Enum):
    REQUIRED = enum.auto()


REQUIRED: Final = _Required.REQUIRED
"""Says that a key without a default must be there."""

D = TypeVar("D")
"""The type of a default; None is one."""


class Metadata(Mapping[str, object]):
    """A mapping from key to value over the header's bytes.

    The typed readers (`integer`, `text`, …) return the default where the key is absent, and without a default demand
    the key. *Raises*: IntegrityError naming the file, the key, what was expected and what was found.
    *Lifetime*: keeps the buffer alive; arrays are views of it.
    """

    def __init__(self, scan: _formats.Scan, data: NDArray[np.uint8], source: str) -> None:
        self._scan = scan
        self._data = data
        self._source = source

    def __len__(self) -> int:
        return self._scan.key_count

    def __iter__(self) -> Iterator[str]:
        return iter(self._scan.keys())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._scan.find(key) is not None

    def __getitem__(self, key: str) -> object:
        return self.value(key)

    def type_of(self, key: str) -> str:
        """The type of a value in words: "U32", "array of STRING". *Raises*: KeyError."""
        return _type_name(self._located(key))

    def integer(
        self,
        key: str,
        default: D | _Required = REQUIRED,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | D:
        """A whole number of any width, within the bounds (inclusive)."""
        found = self._find(key, INTEGERS, "an integer", default)
        if found is None:
            return default  # type: ignore[return-value]
        number = int(self._scalar(found))
        self._check_bounds(key, number, minimum, maximum)
        return number

    def real(
        self,
        key: str,
        default: D | _Required = REQUIRED,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> float | D:
        """A finite floating-point number within the bounds (inclusive)."""
        found = self._find(key, REALS, "F32 or F64", default)
        if found is None:
            return default  # type: ignore[return-value]
        number = float(self._scalar(found))
        if not math.isfinite(number):
            self._refuse(key, f"is {number}; it must be finite")
        self._check_bounds(key, number, minimum, maximum)
        return number

    def boolean(self, key: str, default: D | _Required = REQUIRED) -> bool | D:
        """A truth value."""
        found = self._find(key, {ValueType.BOOL}, "BOOL", default)
        return default if found is None else bool(self._scalar(found))  # type: ignore[return-value]

    def text(self, key: str, default: D | _Required = REQUIRED) -> str | D:
        """A string, which must be UTF-8."""
        found = self._find(key, {ValueType.STRING}, "STRING", default)
        if found is None:
            return default  # type: ignore[return-value]
        try:
            return self._bytes(found).decode("utf-8")
        except UnicodeDecodeError as error:
            self._refuse(key, f"is not UTF-8: byte 0x{error.object[error.start]:02x} at its offset {error.start}")

    def strings(self, key: str) -> StringArray:
        """An array of strings. Their offsets are computed here, in one native pass; nothing is copied."""
        found = self._find(key, {ValueType.ARRAY}, "an array of STRING", REQUIRED)
        assert found is not None
        if found.element_type != ValueType.STRING:
            self._refuse(key, f"is {_article(_type_name(found))}; an array of STRING is expected")
        return self._string_array(found)

    def numbers(self, key: str, *, count: int | None = None) -> NDArray[np.generic]:
        """An array of numbers or truth values, of the type that the file gives them; `count` says how many.

        The result is a read-only view of the file and may be unaligned: `np.require(…, requirements="A")` before
        native code reads it.
        """
        found = self._find(key, {ValueType.ARRAY}, "an array of numbers", REQUIRED)
        assert found is not None
        if ValueType(found.element_type) not in DTYPES:
            self._refuse(key, f"is {_article(_type_name(found))}; an array of numbers is expected")
        if count is not None and found.count != count:
            self._refuse(key, f"has {found.count} elements; {count} are expected")
        return self._number_array(found)

    def value(self, key: str) -> object:
        """The value as whatever it is: int, float, bool, str (bytes that are not UTF-8 shown as \\xNN), StringArray,
        a NumPy view, or for nested arrays a list of these. *Raises*: KeyError."""
        return self._decoded(self._located(key))

    def describe(self, key: str) -> str:
        """The value on one line, shortened and safe for a terminal. *Raises*: KeyError."""
        found = self._located(key)
        if found.type == ValueType.STRING:
            return _shown(self._bytes(found, limit=4 * SHOWN_CHARACTERS), found.count)
        if found.type != ValueType.ARRAY:
            return str(self._scalar(found))
        return f"{_type_name(found)} [{found.count:,}] {self._first_elements(found)}".rstrip()

    def _first_elements(self, found: _formats.Value) -> str:
        if found.element_type == ValueType.ARRAY:
            return ""
        shown = min(found.count, SHOWN_ELEMENTS)
        if found.element_type == ValueType.STRING:
            strings = self._string_array(found, shown)
            parts = [_shown(strings[index][: 4 * SHOWN_CHARACTERS], len(strings[index])) for index in range(shown)]
        else:
            parts = [str(number) for number in self._number_array(found)[:shown]]
        return ", ".join([*parts, *(["…"] if found.count > shown else [])])

    def _located(self, key: str) -> _formats.Value:
        found = self._scan.find(key)
        if found is None:
            raise KeyError(key)
        return found

    def _find(
        self, key: str, types: frozenset[ValueType] | set[ValueType], expected: str, default: object
    ) -> _formats.Value | None:
        found = self._scan.find(key)
        if found is None:
            if default is REQUIRED:
                self._refuse(key, f"is missing; {expected} is expected")
            return None
        if found.type not in types:
            self._refuse(key, f"is {_article(_type_name(found))}; {expected} is expected")
        return found

    def _decoded(self, found: _formats.Value) -> object:
        if found.type == ValueType.STRING:
            return self._bytes(found).decode("utf-8", "backslashreplace")
        if found.type != ValueType.ARRAY:
            return self._scalar(found)
        if found.element_type == ValueType.STRING:
            return self._string_array(found)
        if found.element_type != ValueType.ARRAY:
            return self._number_array(found)
        elements, offset = [], found.offset
        for _ in range(found.count):
            element = self._sound(_formats.array_at(self._data, offset))
            elements.append(self._decoded(element))
            offset = element.end
        return elements

    def _scalar(self, found: _formats.Value) -> int | float | bool:
        number: int | float | bool = np.frombuffer(self._data, DTYPES[ValueType(found.type)], 1, found.offset)[0].item()
        return number

    def _bytes(self, found: _formats.Value, limit: int | None = None) -> bytes:
        count = found.count if limit is None else min(found.count, limit)
        return self._data[found.offset : found.offset + count].tobytes()

    def _number_array(self, found: _formats.Value) -> NDArray[np.generic]:
        return np.frombuffer(self._data, DTYPES[ValueType(found.element_type)], found.count, found.offset)

    def _string_array(self, found: _formats.Value, limit: int | None = None) -> StringArray:
        count = found.count if limit is None else min(found.count, limit)
        offsets, lengths = self._sound(_formats.string_table(self._data, found.offset, count))
        return StringArray(self._data, offsets, lengths)

    def _sound(self, found: D | _formats.Defect) -> D:
        if isinstance(found, _formats.Defect):
            raise IntegrityError(
                f"{self._source} has changed since its header was read: {found.field} at offset {found.offset} "
                f"{found.problem}.",
                remedy="Load the model again.",
                file=self._source,
            )
        return found

    def _check_bounds(self, key: str, number: float, minimum: float | None, maximum: float | None) -> None:
        if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
            span = f"{'-∞' if minimum is None else minimum} … {'∞' if maximum is None else maximum}"
            self._refuse(key, f"is {number}; it must lie in {span}")

    def _refuse(self, key: str, problem: str) -> NoReturn:
        raise IntegrityError(
            f"{self._source}: {key} {problem}.",
            remedy="Convert the model again, or get another file of it.",
            file=self._source,
            field=key,
        )


def _type_name(found: _formats.Value) -> str:
    if found.type == ValueType.ARRAY:
        return f"array of {ValueType(found.element_type).name}"
    return ValueType(found.type).name


def _article(type_name: str) -> str:
    return f"an {type_name}" if type_name.startswith("array") else f"of type {type_name}"


def _shown(text: bytes, bytes_in_all: int) -> str:
    """A string in quotes; control characters and bytes that are not UTF-8 appear escaped."""
    characters = text.decode("utf-8", "backslashreplace")
    shown = characters[:SHOWN_CHARACTERS]
    is_cut = len(characters) > SHOWN_CHARACTERS or bytes_in_all > len(text)
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return f'"{escaped}"' + (f"… ({bytes_in_all:,} bytes)" if is_cut else "")
