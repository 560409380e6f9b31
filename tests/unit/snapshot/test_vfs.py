"""Who has a file, as the kernel tells it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude_service.snapshot.vfs import OperatingSystem, OperatingSystemFile


@pytest.fixture
def file(tmp_path: Path) -> OperatingSystemFile:
    """An open file that has lost its name."""
    path = tmp_path / "file"
    file = OperatingSystem().open(path, writable=True, create=True)
    file.pwritev([b"x" * 10_000], 0)
    file.lock()
    path.unlink()
    return file


def test_a_file_without_a_name_that_nobody_else_has_is_forsaken(file: OperatingSystemFile) -> None:
    assert file.is_forsaken()
    assert file.is_forsaken(), "asking changes nothing"


def test_a_file_with_another_name_is_not_forsaken(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = OperatingSystem().open(path, writable=True, create=True)
    os.link(path, tmp_path / "kept")
    path.unlink()
    assert not file.is_forsaken()


@pytest.mark.parametrize(
    "hold",
    [
        lambda file: file.map(1 << 20),
        lambda file: file.map(1 << 20)[4096:4097],
        lambda file: os.fdopen(os.open(f"/proc/self/fd/{file._descriptor}", os.O_RDONLY)),
        lambda file: os.fdopen(os.open(f"/proc/self/fd/{file._descriptor}", os.O_WRONLY), "wb"),
    ],
    ids=["mapped", "a view of a mapping", "open for reading", "open for writing"],
)
def test_a_file_that_somebody_holds_is_not_forsaken(
    file: OperatingSystemFile, hold: Callable[[OperatingSystemFile], object]
) -> None:
    held = hold(file)
    assert not file.is_forsaken()
    if hasattr(held, "close"):
        held.close()
    del held
    assert file.is_forsaken()


def test_where_mappings_cannot_be_seen_no_file_is_forsaken(
    file: OperatingSystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise FileNotFoundError

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        view = file.map(4096)
    assert bytes(view[:3]) == b"xxx"
    del view
    assert not file.is_forsaken()
