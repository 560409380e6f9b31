"""Magnitude for Python: `magnitude.Client` talks to a server, `magnitude.v1` is its contract.

Where the package `magnitude-service` is installed too, its loader is at hand as `magnitude.loader`. Everything is
imported when it is first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnitude.client import Client as Client
    from magnitude.errors import CallError as CallError

__version__ = "0.1.0"

_LAZY = {
    "Client": ("magnitude.client", "Client"),
    "CallError": ("magnitude.errors", "CallError"),
    "tls": ("magnitude.tls", ""),
    "loader": ("magnitude_service.loader", ""),
}


def __getattr__(name: str) -> Any:
    """Imports what is named for the first time."""
    if name not in _LAZY:
        raise AttributeError(f"module 'magnitude' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise AttributeError(
            f"magnitude.{name} needs the package {error.name}: pip install magnitude-service"
        ) from error
    return getattr(found, attribute) if attribute else found
