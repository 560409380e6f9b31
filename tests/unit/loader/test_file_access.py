"""Files that cannot be opened are told apart, with what would do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude_service.errors import (
    FileAccessError,
    IntegrityError,
    InvalidRequestError,
    NotFoundError,
)
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.support.gguf_bytes import write_model
from tests.support.privileges import as_owner, without_privileges


def load(path: Path | str) -> MappedModel:
    return MMapModelLoader().load(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small.gguf")


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that everybody may enter, and a process without privileges while the test runs."""
    with without_privileges() as folder:
        yield folder


def test_a_missing_file_is_named_with_the_folder_in_which_names_start() -> None:
    with pytest.raises(NotFoundError, match=r"no/such\.gguf cannot be opened: No such file") as raised:
        load("no/such.gguf")
    assert raised.value.reason == "MODEL_NOT_FOUND"
    assert str(Path.cwd()) in raised.value.remedy


def test_an_empty_file_a_folder_a_fifo_a_socket_and_a_device_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(IntegrityError, match=r"empty\.gguf is empty \(0 bytes\)"):
        load(tmp_path / "empty.gguf")
    with pytest.raises(InvalidRequestError, match=r"is a folder, not a model file\. Name a file in it: empty\.gguf"):
        load(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidRequestError, match="fifo is a FIFO; a model must be a regular file"):
        load(tmp_path / "fifo")
    with pytest.raises(InvalidRequestError, match="/dev/zero is a device"):
        load("/dev/zero")
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s")
        with pytest.raises(InvalidRequestError, match="is a socket"):
            load(f"{short}/s")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "file/inside"])
def test_impossible_paths_are_typed_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((InvalidRequestError, NotFoundError)):
        load(tmp_path / name)


def test_a_loop_of_links_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(NotFoundError, match="symbolic links"):
        load(tmp_path / "loop")


def test_a_file_that_may_not_be_read_is_named_with_owner_mode_and_remedy(nobodys_folder: Path) -> None:
    path = nobodys_folder / "secret model.gguf"
    as_owner(path, 0o000 if os.getuid() else 0o600)
    with pytest.raises(FileAccessError) as raised:
        load(path)
    text = str(raised.value)
    assert f"{path} may not be read by this process" in text
    assert f"(uid {os.getuid()})" in text
    assert ("mode 0000" if os.getuid() else "mode 0600") in text
    assert f"+r '{path}'` would do, or running as" in text


def test_a_folder_that_may_not_be_searched_is_named_instead_of_the_file(nobodys_folder: Path) -> None:
    path = nobodys_folder / "m.gguf"
    as_owner(path, 0o644)
    as_owner(nobodys_folder, 0o600)
    try:
        with pytest.raises(FileAccessError) as raised:
            load(path)
    finally:
        as_owner(nobodys_folder, 0o755)
    assert f"{path} is out of reach: {nobodys_folder} may not be searched" in str(raised.value)
    assert f"+x {nobodys_folder}` would do" in str(raised.value)


def test_running_out_of_descriptors_is_a_typed_error(path: Path) -> None:
    script = (
        "import os, resource, sys\n"
        "from magnitude_service.errors import ExhaustedError\n"
        "from magnitude_service.loader import MMapModelLoader\n"
        "loader = MMapModelLoader(); loader.load(sys.argv[1]).close()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "models = []\n"
        "try:\n"
        "    while True: models.append(loader.load(sys.argv[1]))\n"
        "except ExhaustedError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True, timeout=60)
    assert "ulimit -n" in done.stdout
