"""What a manager counts is what it was asked to do, and the bytes are those of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import NotFoundError, UnavailableError
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from tests.support import gguf_bytes


def header(session_id: str) -> snapshot_pb2.StateHeader:
    return snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(session_id=session_id))


def test_saves_restores_and_compactions_are_counted_once_they_are_done(tmp_path: Path) -> None:
    model = gguf_bytes.write_model(tmp_path / "M.gguf")
    with StateSnapshotManager(model, SnapshotOptions(state_auto_compact=False)) as manager:
        begin = manager.statistics()
        assert (begin.saves, begin.restores, begin.compactions) == (0, 0, 0)
        for _ in range(3):
            manager.save(header("a"), agent_state=b"x" * 20_000)
        manager.restore("a")
        with pytest.raises(NotFoundError):
            manager.restore("b")
        manager.delete("a", [1, 2])
        full = manager.statistics()
        assert (full.saves, full.restores, full.compactions) == (3, 1, 0)
        assert full.dead_bytes > 40_000
        assert 20_000 < full.live_bytes < 40_000
        manager.compact(dry_run=True)
        assert manager.statistics() == full
        manager.compact()
        after = manager.statistics()
        assert (after.compactions, after.dead_bytes) == (1, 0)
    with pytest.raises(UnavailableError):
        manager.statistics()
