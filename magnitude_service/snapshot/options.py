"""What an operator may say about where sessions are kept, how many versions, and how space comes back."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class SnapshotOptions(Options):
    """Where sessions are kept and for how long."""

    state: str = option(
        "sidecar",
        "Where sessions are kept: in a file beside the model, or behind the model's own last tensor.",
        choices=("sidecar", "model"),
    )
    state_dir: str = option("", "Folder of the state files; empty: the model's own.")
    state_versions_kept: int = option(
        8, "Versions kept of each session; older ones are deleted by the next save. 0: all.", minimum=0
    )
    state_ttl_seconds: float = option(
        0.0, "A session that was not saved for so long is deleted. 0: none is.", minimum=0
    )
    state_quota_bytes: int = option(
        0, "Live bytes of all sessions whose ids begin alike, up to the first '/'. 0: no quota.", minimum=0
    )
    state_auto_compact: bool = option(True, "Give back the space of deleted versions in the background.")
    state_compact_dead_ratio: float = option(
        0.3, "Compaction begins when so large a part of the state file is dead.", minimum=0.01, maximum=1
    )
    state_compact_min_bytes: int = option(
        16 << 20, "Compaction does not begin for fewer dead bytes than this.", minimum=0
    )
    state_compact_bytes_per_second: int = option(
        32 << 20, "Compaction copies no faster, so that saves and tokens do not wait for it.", minimum=1 << 20
    )
    state_punch_after_seconds: float = option(
        600.0, "In a model's tail, space is given back when it has been dead for so long.", minimum=0
    )
    state_sync_interval_seconds: float = option(
        1.0, "Saves with durability RELAXED reach the disk after at most so long.", minimum=0.01, maximum=60
    )
