"""Checks of single values. Each error names the field's path, what it holds and what it may hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import InvalidRequestError, UnimplementedError

SHOWN_CHARACTERS_MAX = 80
WHOLE_MAX = 2.0**53
"""Below it a float has every digit of a whole number."""


def refuse(field: str, found: object, allowed: str, remedy: str = "") -> NoReturn:
    """Raises InvalidRequestError: `field` is `found`; `allowed` says what it must be."""
    shown = found if isinstance(found, str) else plain(found) if isinstance(found, float) else repr(found)
    if len(shown) > SHOWN_CHARACTERS_MAX:
        shown = shown[: SHOWN_CHARACTERS_MAX - 1] + "…"
    raise InvalidRequestError(
        f"{field} is {shown}; it must be {allowed}.",
        remedy=remedy or f"Set {field} to {allowed}, or leave it out.",
        field=field,
        value=shown,
        allowed=allowed,
    )


def unimplemented(field: str, what: str, remedy: str = "") -> NoReturn:
    """Raises UnimplementedError: `what`, which `field` asks for, is not built yet."""
    raise UnimplementedError(f"{field}: {what}.", remedy=remedy or f"Leave {field} out.", field=field)


def number(field: str, value: float, low: float, high: float, *, above: bool = False) -> float:
    """The value, if it is finite and within low…high; with `above`, `low` itself is out of bounds."""
    if not (math.isfinite(value) and low <= value <= high and not (above and value == low)):
        span = f"above {plain(low)}, up to {plain(high)}" if above else f"within {plain(low)} … {plain(high)}"
        refuse(field, value, span)
    return value


def plain(value: float) -> str:
    """A number in words of an error: a whole one digit by digit, so that it can be pasted back, another in seven digits
    at most."""
    is_whole = isinstance(value, int) or (value.is_integer() and abs(value) < WHOLE_MAX)
    return str(int(value)) if is_whole else f"{value:.7g}"


def count(field: str, found: int, allowed: int) -> None:
    """Raises if a list has more entries than allowed."""
    if found > allowed:
        refuse(field, f"{found} entries long", f"at most {allowed} entries long")


def size(field: str, found: int, allowed: int) -> None:
    """Raises if so many bytes are more than allowed."""
    if found > allowed:
        refuse(field, f"{found} bytes long", f"at most {allowed} bytes long")


def length(field: str, text: str, least: int, most: int) -> str:
    """The text, if it has least…most bytes of UTF-8."""
    found = len(text.encode())
    if not least <= found <= most:
        refuse(field, f"{found} bytes long", f"{least} … {most} bytes long")
    return text


def token_id(field: str, value: int, vocabulary_size: int) -> int:
    """The id, if the vocabulary has it."""
    if not 0 <= value < vocabulary_size:
        refuse(field, value, f"within 0 … {vocabulary_size - 1}", "Use ids of this model's tokenizer.")
    return value


def token_ids(field: str, ids: Sequence[int], count_max: int, vocabulary_size: int) -> NDArray[np.int32]:
    """The ids as an array, if they are few enough and the vocabulary has them."""
    count(field, len(ids), count_max)
    array = np.fromiter(ids, np.int64, len(ids))
    if (bad := np.flatnonzero(array >= vocabulary_size)).size:
        token_id(f"{field}[{bad[0]}]", int(array[bad[0]]), vocabulary_size)
    return array.astype(np.int32)


def labels(field: str, entries: Mapping[str, str], entries_max: int, key_max: int, value_max: int) -> dict[str, str]:
    """The entries, if there are few and each is short."""
    count(field, len(entries), entries_max)
    for key, value in entries.items():
        length(f"{field}[{key[:SHOWN_CHARACTERS_MAX]!r}] (its key)", key, 1, key_max)
        length(f"{field}[{key!r}]", value, 0, value_max)
    return dict(entries)


def json_object(field: str, text: str, bytes_max: int) -> dict[str, object]:
    """The JSON object in a text. Refuses what could not be written as JSON in UTF-8 again: NaN, 1e999, a surrogate."""
    length(field, text, 0, bytes_max)
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        refuse(field, f"no JSON ({json_fault(error)})", "a JSON object in UTF-8", f"Correct {field}.")
    if not isinstance(value, dict):
        refuse(field, f"a JSON {type(value).__name__}", "a JSON object", f"Correct {field}.")
    if "\\u0000" in text and has_nul(value):
        refuse(field, "holding the character U+0000", "without it", f"Correct {field}.")
    return value


def json_fault(error: Exception) -> str:
    """What is wrong with a JSON text, in words that hold none of it."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, UnicodeEncodeError):
        return "a surrogate without its pair"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "a number that JSON does not have"


def has_nul(value: object) -> bool:
    """Whether U+0000 is in any string of a JSON value."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(has_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(has_nul(part) for part in value)
