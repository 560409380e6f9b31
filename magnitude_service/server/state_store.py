"""What the servicers want of a store of sessions: `app` puts in snapshot.LazyManager. Every method may block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from magnitude.v1 import snapshot_pb2


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """What a save is told beside the session."""

    agent_state: bytes | NDArray[np.uint8] | None = None
    keeps_pages: bool = True
    pages_type: str = ""  # the cache type that they are saved in; "": the cache's own
    labels: Mapping[str, str] = field(default_factory=dict)
    step_number: int | None = None
    step_name: str = ""
    expected_version: int | None = None


class SavedState(Protocol):
    """One version, every byte of it checked. *Lifetime*: the bytes are views that stay valid as long as they live."""

    @property
    def snapshot(self) -> snapshot_pb2.Snapshot: ...
    @property
    def session(self) -> snapshot_pb2.SessionState: ...
    @property
    def page_layout(self) -> snapshot_pb2.PageLayout | None: ...
    @property
    def agent_state(self) -> NDArray[np.uint8]: ...
    @property
    def parts(self) -> Mapping[str, Any]: ...
    @property
    def key_value(self) -> NDArray[np.uint8] | None: ...
    @property
    def piece_checksums(self) -> Mapping[str, Sequence[int]]: ...  # CRC-32C of each mebibyte, of both of these


class Page(Protocol):
    """Versions, and what asks for the rest."""

    @property
    def snapshots(self) -> Sequence[snapshot_pb2.Snapshot]: ...
    @property
    def next_page_token(self) -> str: ...


class Compacted(Protocol):
    """What a compaction gave back."""

    @property
    def bytes_before(self) -> int: ...
    @property
    def bytes_after(self) -> int: ...
    @property
    def dropped_versions(self) -> int: ...


class StateManager(Protocol):
    """snapshot/manager.py says what each method promises and raises."""

    def save(
        self,
        header: snapshot_pb2.StateHeader,
        *,
        agent_state: Any = None,
        parts: Mapping[str, Any] | None = None,
        key_value: Any = None,
        expected_version: int | None = None,
    ) -> snapshot_pb2.Snapshot: ...
    def restore(self, session_id: str, version: int | None = None) -> SavedState: ...
    def get(self, session_id: str, version: int | None = None) -> snapshot_pb2.Snapshot: ...
    def list(
        self,
        session_id: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        all_versions: bool = False,
        page_size: int = 100,
        page_token: str = "",
    ) -> Page: ...
    def delete(self, session_id: str, versions: Sequence[int] = ()) -> tuple[int, int]: ...
    def compact(self, keep_versions: int | None = None, *, dry_run: bool = False) -> Compacted: ...


class StateStore(Protocol):
    """One model's state file, opened when it is first needed."""

    @property
    def folder(self) -> Path: ...
    def writer(self) -> StateManager: ...
    def reader(self) -> StateManager | None: ...
