"""Keeps sessions over restarts, in a crash-safe log behind the last tensor of a GGUF file (FORMAT.md).

Names are imported when they are first used: the options need no NumPy and no protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnitude_service.snapshot.lazy_manager import LazyManager
    from magnitude_service.snapshot.manager import Durability, StateSnapshotManager
    from magnitude_service.snapshot.saved_state import SavedState
    from magnitude_service.snapshot.upkeep import Compacted, UpkeepThread

from magnitude_service.snapshot.options import SnapshotOptions

__all__ = [
    "Compacted",
    "Durability",
    "LazyManager",
    "SavedState",
    "SnapshotOptions",
    "StateSnapshotManager",
    "UpkeepThread",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from magnitude_service.snapshot import lazy_manager, manager, saved_state, upkeep

    names = {**vars(saved_state), **vars(upkeep), **vars(manager), **vars(lazy_manager)}
    return names[name]
