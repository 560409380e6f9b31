"""How a layer declares an option: default, bound and one sentence, once, beside the code that obeys it.

`config.py` reads these declarations to make the flag, the MAGNITUDE_* variable, the key of the config
file and the help text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from magnitude_service.errors import ConfigurationError


def option(
    default: Any,
    sentence: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    flag: str = "",
    also: Sequence[str] = (),
) -> Any:
    """A dataclass field with bounds (inclusive). `flag` differs from the field's name where users know another
    one; `also` are further names under which it is accepted."""
    metadata = {
        "sentence": sentence,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "flag": flag,
        "also": tuple(also),
    }
    return dataclasses.field(default=default, metadata=metadata)


def check_bounds(field: dataclasses.Field[Any], value: object, source: str) -> None:
    """Raises ConfigurationError, naming `source`, the value and the bound, when a value is out of bounds."""
    bounds = field.metadata
    if value is None or "sentence" not in bounds:
        return
    if bounds["choices"] and value not in bounds["choices"]:
        allowed = ", ".join(choice or "empty" for choice in bounds["choices"])
        raise ConfigurationError(f"{source} is {value!r}; it must be one of {allowed}.", field=field.name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = bounds["minimum"], bounds["maximum"]
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        span = f"{'-∞' if low is None else low} … {'∞' if high is None else high}"
        raise ConfigurationError(f"{source} is {value!r}; it must lie in {span}.", field=field.name)


class Options:
    """Base of the layers' frozen option dataclasses: a value out of bounds never comes into being."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            check_bounds(field, getattr(self, field.name), f"{type(self).__name__}.{field.name}")
