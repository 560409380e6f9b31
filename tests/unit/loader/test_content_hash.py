"""The content hash: computed once, kept, compared, never trusted beyond what is known."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from magnitude_service.errors import (
    CancelledError,
    IntegrityError,
)
from magnitude_service.loader import LoaderOptions, MMapModelLoader
from tests.support.gguf_bytes import write_model


def settle(path: Path) -> None:
    """Makes a file old enough that its time of change is trusted."""
    os.utime(path, ns=(10**18, 10**18))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small.gguf")


def test_the_content_hash_is_kept_and_found_again(path: Path, tmp_path: Path) -> None:
    settle(path)
    loader = MMapModelLoader(cache_folder=tmp_path / "cache")
    with loader.load(path) as model:
        assert model.known_content_sha256 is None
        computed = model.content_sha256()
        assert model.known_content_sha256 == computed
    [entry] = (tmp_path / "cache").rglob("*.json")
    entry.write_text(entry.read_text().replace(computed, "0" * 64))
    with loader.load(path) as model:
        assert model.content_sha256() == "0" * 64


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"key": 1}', '{"key": "k", "content_sha256": "0"}', "[" * 100_000])
def test_a_damaged_entry_counts_as_absent(path: Path, tmp_path: Path, damage: str) -> None:
    settle(path)
    loader = MMapModelLoader(cache_folder=tmp_path / "cache")
    with loader.load(path) as model:
        computed = model.content_sha256()
    [entry] = (tmp_path / "cache").rglob("*.json")
    entry.write_text(damage)
    with loader.load(path) as model:
        assert model.content_sha256() == computed


def test_verify_hashes_every_byte_and_compares(path: Path, tmp_path: Path) -> None:
    settle(path)
    loader = MMapModelLoader(LoaderOptions(verify=True), cache_folder=tmp_path / "cache")
    with loader.load(path) as model:
        computed = model.known_content_sha256
    assert computed == hashlib.sha256(path.read_bytes()).hexdigest()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    settle(path)
    with pytest.raises(IntegrityError, match=f"but had {computed} at the same time of change"):
        loader.load(path)


def test_a_changed_file_is_hashed_again_and_a_grown_tail_is_not(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    loader = MMapModelLoader(cache_folder=cache)
    for times, tail in enumerate((b"", b"a tail longer than any padding" * 2, b"a longer tail" * 9), start=1):
        write_model(path, tail=tail)
        os.utime(path, ns=(10**18 + times, 10**18 + times))
        with loader.load(path) as model:
            model.content_sha256()
    # One entry by the mtime of the file without a tail, and one for any length of tail.
    assert len(list(cache.rglob("*.json"))) == 2


def test_a_hash_of_a_file_written_just_now_is_not_kept(path: Path, tmp_path: Path) -> None:
    with MMapModelLoader(cache_folder=tmp_path / "cache").load(path) as model:
        model.content_sha256()
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_next_hash(path: Path, tmp_path: Path) -> None:
    settle(path)
    (tmp_path / "cache").write_text("a file where a folder should be")
    with MMapModelLoader(cache_folder=tmp_path / "cache").load(path) as model:
        assert model.content_sha256() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_hashing_can_be_given_up(path: Path) -> None:
    with MMapModelLoader().load(path) as model:
        with pytest.raises(CancelledError):
            model.content_sha256(is_cancelled=lambda: True)
        assert model.known_content_sha256 is None
        assert len(model.content_sha256()) == 64
