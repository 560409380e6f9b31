"""What a state file's manager has done, and what the file holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateStatistics:
    """Counts since the file was opened, and bytes as of now; dead ones are those that compaction gives back."""

    saves: int
    restores: int
    compactions: int
    live_bytes: int
    dead_bytes: int
