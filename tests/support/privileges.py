"""Runs a test without root's privileges, where it runs as root."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support import gguf_bytes as raw

NOBODY = 65534


@contextlib.contextmanager
def without_privileges() -> Iterator[Path]:
    """A folder that everybody may enter; until the end of the context this process is nobody."""
    with tempfile.TemporaryDirectory(prefix="nobody") as folder:
        os.chmod(folder, 0o755)
        if os.geteuid() != 0:
            yield Path(folder)
            return
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)


def as_owner(path: Path, mode: int) -> None:
    """Writes a small model where there is nothing, and sets a mode, with the rights that this process began with."""
    effective = os.geteuid()
    if os.getuid() == 0:
        os.seteuid(0)
    try:
        if not path.exists():
            path.write_bytes(raw.small_model().build())
        os.chmod(path, mode)
    finally:
        os.seteuid(effective)
