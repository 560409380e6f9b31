"""Small files of an operator's: read whole, and whether they were replaced or written to since they were looked at
last."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from magnitude_service.errors import ConfigurationError


class WatchedFiles:
    """Looks at most once in `interval_seconds`. Kubernetes replaces a secret's files by turning a symbolic link, which
    changes device or inode; an editor changes size or time."""

    def __init__(self, paths: Sequence[Path], interval_seconds: float) -> None:
        self._paths = tuple(paths)
        self._interval_seconds = interval_seconds
        self._seen = self._look()
        self._looked = time.monotonic()

    def have_changed(self) -> bool:
        """Whether one is not what it was at the last look; a file that is missing now has changed too."""
        now = time.monotonic()
        if now - self._looked < self._interval_seconds:
            return False
        self._looked = now
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> tuple[tuple[int, int, int, int] | None, ...]:
        return tuple(map(_identity, self._paths))


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_whole(path: Path, bytes_max: int, field: str) -> bytes:
    """All bytes of the file that a setting names. *Raises*: ConfigurationError for one that cannot be read, or that has
    more bytes than this: part of it would be another certificate, or other tokens."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{field} {path} cannot be read: {error.strerror}.",
            remedy="Name a file that is there and that this user may read.",
            field=field,
        ) from error
    if len(content) > bytes_max:
        raise ConfigurationError(
            f"{field} {path} has more than {bytes_max:,} bytes, which is the most that is read.",
            remedy="Name another file, or take out of this one what does not belong there.",
            field=field,
        )
    return content
