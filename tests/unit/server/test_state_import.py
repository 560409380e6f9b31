"""Bytes of an import on their way to a disk that takes no more."""

from __future__ import annotations

import errno
import io
import tempfile
from typing import Any

import google_crc32c
import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import PreconditionError
from magnitude_service.server.state_import import Blob


class FullDisk(io.RawIOBase):
    """Takes nothing."""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_few_bytes_that_a_full_disk_does_not_take_are_refused_when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: io.BufferedRandom(FullDisk()))
    blob = Blob("agent_state", 100, "/full")
    with pytest.raises(PreconditionError) as caught:
        blob.add(snapshot_pb2.StateChunk(content=b"few", crc32c=google_crc32c.value(b"few")))
    assert caught.value.reason == "STORAGE_FULL"
    blob.close()
