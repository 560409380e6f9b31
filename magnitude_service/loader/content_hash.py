"""The SHA-256 of a model's every byte, and where it is kept so that it is computed once.

A hash is kept by (device, inode, end of the model, mtime) of each shard and by `model_id`. The mtime stands for the
last change of the tensors; a file with a tail is written to without its tensors being touched, so there the mtime is
unknown and left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from magnitude_service.errors import CancelledError
from magnitude_service.loader.mapped_file import MappedFile

FOLDER = "content-sha256"
CHUNK_BYTES = 8 << 20
SETTLED_NS = 2_000_000_000
"""A file written to more recently is not trusted to show its next change in its mtime (FAT counts in 2 s)."""


def hash_content(files: Sequence[MappedFile], is_cancelled: Callable[[], bool]) -> str:
    """SHA-256, in hexadecimal digits, over the bytes of each shard up to the end of its last tensor, in shard order.

    Releases the interpreter lock while it hashes; asks `is_cancelled` every few milliseconds.
    *Raises*: CancelledError; IntegrityError where a file changed meanwhile.
    """
    digest = hashlib.sha256()
    for file in files:
        view = file.view
        for begin in range(0, len(view), CHUNK_BYTES):
            if is_cancelled():
                raise CancelledError(f"The hash of {file.path} was given up.")
            digest.update(view[begin : begin + CHUNK_BYTES].data)
        file.check()
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ContentHashStore:
    """Hashes in a folder, one small file each. A damaged or unreadable entry counts as absent; a folder that cannot
    be written to costs the next start a hash, and nothing else."""

    folder: Path

    def read(self, key: str) -> str | None:
        """The hash kept under a key."""
        try:
            entry = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or entry.get("key") != key:
            return None
        found = entry.get("content_sha256")
        return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{64}", found) else None

    def write(self, key: str, content_sha256: str) -> bool:
        """Keeps a hash; whether that worked."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
                json.dump({"key": key, "content_sha256": content_sha256}, file)
            os.replace(file.name, path)  # a reader sees the old entry or the whole new one
        except OSError:
            return False
        return True

    def path_of(self, key: str) -> Path:
        """Where the hash of a key is kept."""
        return self._path(key)

    def _path(self, key: str) -> Path:
        return self.folder / FOLDER / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")


def content_key(files: Sequence[MappedFile], model_id: str) -> str | None:
    """The key under which a model's hash is kept; None while a file is too fresh to be told from its next version."""
    parts = [model_id]
    now = time.time_ns()
    for file in files:
        status = file.current_status()
        if now - status.st_mtime_ns < SETTLED_NS:
            return None
        alignment = file.header.alignment
        padded_end = (file.header.model_end + alignment - 1) // alignment * alignment
        changed = status.st_mtime_ns if status.st_size <= padded_end else "unknown"
        parts.append(f"{status.st_dev}:{status.st_ino}:{file.header.model_end}:{changed}")
    return " ".join(parts)
