"""A file that is truncated or overwritten while it is mapped costs its requests, never the process, and never passes
zeros off as weights."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from magnitude_service.errors import IntegrityError
from magnitude_service.formats import _formats
from magnitude_service.loader import LoaderOptions, MappedModel, MMapModelLoader, mapped_file
from tests.support import gguf_bytes as raw

PAGE = mmap.PAGESIZE
TENSOR_BYTES = 64 * PAGE


def write(path: Path, fill: int = 7, name: bytes = b"first", tail: bytes = b"") -> Path:
    """A model with one tensor of 64 pages, all of one byte."""
    model = raw.small_model()
    model.key_values[1] = raw.key_value(b"general.name", raw.text(name))
    model.tensors = [raw.tensor_info(b"w", [TENSOR_BYTES // 4])]
    model.data = bytes([fill]) * TENSOR_BYTES
    path.write_bytes(model.build() + tail)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "m.gguf")


def load(path: Path) -> MappedModel:
    return MMapModelLoader().load(path)


def step(model: MappedModel) -> int:
    """What an engine does: compute from every page, then ask whether the result counts."""
    total = int(model.tensors["w"].view[::64].sum(dtype=np.int64))
    model.check()
    return total


def test_an_untouched_file_passes_every_check(path: Path) -> None:
    with load(path) as model:
        assert step(model) == step(model) == 7 * TENSOR_BYTES // 64


@pytest.mark.parametrize("kept", [0, 1, PAGE, 3 * PAGE + 17, TENSOR_BYTES])
def test_truncation_gives_an_error_instead_of_sigbus(path: Path, kept: int) -> None:
    with load(path) as model:
        step(model)
        os.truncate(path, kept)
        with pytest.raises(IntegrityError, match=f"it has {kept:,} bytes now, and the model ends at"):
            step(model)


def test_a_file_cut_by_one_byte_within_its_last_page_is_found_out(path: Path) -> None:
    with load(path) as model:
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(IntegrityError, match="was changed while it was in use"):
            step(model)


def test_damage_is_for_ever_even_when_the_file_is_put_back(path: Path) -> None:
    content = path.read_bytes()
    with load(path) as model:
        os.truncate(path, 0)
        with pytest.raises(IntegrityError):
            step(model)
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match="it has 0 bytes now"):
            step(model)
    with load(path) as model:
        assert step(model) == 7 * TENSOR_BYTES // 64


def test_a_fault_is_remembered_though_the_file_has_grown_back_before_the_check(path: Path) -> None:
    content, status = path.read_bytes(), path.stat()
    with load(path) as model:
        os.truncate(path, PAGE)
        assert int(model.tensors["w"].view[-1]) == 0
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(IntegrityError, match="a page of it could not be read"):
            model.check()


def test_another_model_copied_over_the_file_is_found_out(path: Path) -> None:
    with load(path) as model:
        write(path, fill=9, name=b"other")
        with pytest.raises(IntegrityError, match="its header is not the one that was loaded"):
            step(model)


def test_a_model_replaced_by_renaming_goes_on_with_its_old_file(path: Path) -> None:
    with load(path) as model:
        os.replace(write(path.with_name("new"), fill=9), path)
        assert step(model) == 7 * TENSOR_BYTES // 64


def test_a_growing_or_shrinking_tail_is_no_damage(path: Path) -> None:
    end = path.stat().st_size
    with load(path) as model:
        for size in (end + 5 * PAGE, end + 2 * PAGE, end):
            os.truncate(path, size)
            assert step(model) == 7 * TENSOR_BYTES // 64


def test_every_shard_is_watched(tmp_path: Path) -> None:
    def shard(number: int) -> Path:
        model = raw.GGUFBytes(
            key_values=[
                *raw.small_model().key_values[:1],
                raw.key_value(b"split.no", raw.scalar(raw.U16, number)),
                raw.key_value(b"split.count", raw.scalar(raw.U16, 2)),
            ],
            tensors=[raw.tensor_info(b"w%d" % number, [1024])],
            data=bytes(4096),
        )
        path = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        path.write_bytes(model.build())
        return path

    first, second = shard(0), shard(1)
    with load(first) as model:
        model.check()
        os.truncate(second, 10)
        with pytest.raises(IntegrityError, match=f"{second} was changed"):
            model.check()


def test_many_threads_that_fault_at_once_all_go_on(path: Path) -> None:
    with load(path) as model:
        view = model.tensors["w"].view
        os.truncate(path, PAGE)
        threads = [threading.Thread(target=lambda begin=begin: view[begin::97].sum()) for begin in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(IntegrityError):
            model.check()


def test_one_damaged_model_leaves_the_others_alone(path: Path) -> None:
    with load(write(path.with_name("other.gguf"), fill=3)) as other, load(path) as model:
        os.truncate(path, 0)
        with pytest.raises(IntegrityError):
            step(model)
        assert step(other) == 3 * TENSOR_BYTES // 64
    with load(write(path)) as again:  # a place in the guard's table that was used before
        assert step(again) == 7 * TENSOR_BYTES // 64


def test_hashing_a_file_that_shrinks_is_an_error(path: Path) -> None:
    with load(path) as model:
        os.truncate(path, 2 * PAGE)
        with pytest.raises(IntegrityError):
            model.content_sha256()
        assert model.known_content_sha256 is None


def shrinking_map(path: Path, change: Callable[[], object]) -> Callable[[int, int], _formats.Mapping | int]:
    """`map_file`, after which something happens to the file before the header is read."""
    map_file = _formats.map_file

    def mapped(descriptor: int, size: int) -> _formats.Mapping | int:
        mapping = map_file(descriptor, size)
        change()
        return mapping

    return mapped


def test_a_file_truncated_between_mapping_and_parsing_is_said_to_have_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_formats, "map_file", shrinking_map(path, lambda: os.truncate(path, 0)))
    with pytest.raises(IntegrityError, match="was changed while it was in use: it has 0 bytes now"):
        load(path)


def test_a_file_rewritten_while_it_is_loaded_is_said_to_have_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = mapped_file.MappedFile._watched_bytes_hash

    def rewritten(file: mapped_file.MappedFile) -> bytes:
        monkeypatch.setattr(mapped_file.MappedFile, "_watched_bytes_hash", hashed)
        model = raw.small_model()
        model.tensors = [raw.tensor_info(b"x", [TENSOR_BYTES // 4])]
        model.data = bytes(TENSOR_BYTES + 2 * PAGE)
        path.write_bytes(model.build())
        os.utime(path, ns=(1, 1))
        return hashed(file)

    monkeypatch.setattr(mapped_file.MappedFile, "_watched_bytes_hash", rewritten)
    with pytest.raises(IntegrityError, match="its header is not the one that was read first"):
        load(path)


def test_a_file_that_shrinks_while_it_is_copied_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = _formats.allocate

    def truncating(size: int) -> _formats.Mapping | int:
        os.truncate(path, 3 * PAGE)
        return allocate(size)

    monkeypatch.setattr(_formats, "allocate", truncating)
    with pytest.raises(IntegrityError, match=f"it has {3 * PAGE:,} bytes now"):
        MMapModelLoader(LoaderOptions(mmap=False)).load(path)


def test_more_mappings_than_the_guard_can_watch_are_refused_not_unguarded(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        mappings = [_formats.map_file(descriptor, PAGE) for _ in range(4200)]
    finally:
        os.close(descriptor)
    refused = [mapping for mapping in mappings if isinstance(mapping, int)]
    assert 100 <= len(refused) < 200
    del mappings
    with load(path) as model:
        assert step(model) > 0


# In processes of their own: what happens to a SIGBUS that is not ours

LOAD = """
import faulthandler, mmap, os, signal, sys
from magnitude_service.errors import IntegrityError
from magnitude_service.loader import MMapModelLoader
path = sys.argv[1]
"""


def run(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOAD + script, path], capture_output=True, text=True, timeout=60, check=False
    )


READ_TRUNCATED = """
os.truncate(path, 0)
model.tensors["w"].view.sum()
try:
    model.check()
except IntegrityError:
    print("alive")
"""


def test_a_process_survives_reading_a_truncated_model(path: Path) -> None:
    done = run("model = MMapModelLoader().load(path)" + READ_TRUNCATED, path)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_fault_in_memory_that_is_not_ours_still_ends_the_process(path: Path) -> None:
    done = run(
        """
model = MMapModelLoader().load(path)
file = open(path + ".other", "w+b")
file.truncate(8192)
other = mmap.mmap(file.fileno(), 8192)
file.truncate(0)
other[5000]
print("not reached")
""",
        path,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_signal_that_somebody_sends_still_ends_the_process(path: Path) -> None:
    done = run("model = MMapModelLoader().load(path)\nos.kill(os.getpid(), signal.SIGBUS)\nprint('no')", path)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_handler_that_was_there_before_gets_what_is_not_ours(path: Path) -> None:
    done = run(
        """
signal.signal(signal.SIGBUS, lambda number, frame: print("passed on", number))
model = MMapModelLoader().load(path)
os.kill(os.getpid(), signal.SIGBUS)
"""
        + READ_TRUNCATED,
        path,
    )
    assert (done.returncode, done.stdout) == (0, f"passed on {int(signal.SIGBUS)}\nalive\n"), done.stderr


def test_an_ignored_sigbus_stays_ignored(path: Path) -> None:
    done = run(
        """
signal.signal(signal.SIGBUS, signal.SIG_IGN)
model = MMapModelLoader().load(path)
os.kill(os.getpid(), signal.SIGBUS)
"""
        + READ_TRUNCATED,
        path,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_faulthandler_enabled_before_keeps_working_and_does_not_get_in_the_way(path: Path) -> None:
    done = run("faulthandler.enable()\nmodel = MMapModelLoader().load(path)" + READ_TRUNCATED, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
    write(path)
    done = run("faulthandler.enable()\nmodel = MMapModelLoader().load(path)\nos.kill(os.getpid(), signal.SIGBUS)", path)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr


REPLACED = """
first = MMapModelLoader().load(path)
faulthandler.enable()
model = MMapModelLoader().load(path)
"""


def test_the_guard_comes_back_when_somebody_replaced_its_handler(path: Path) -> None:
    done = run(REPLACED + READ_TRUNCATED, path)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_handlers_that_were_installed_over_each_other_do_not_go_round_in_a_circle(path: Path) -> None:
    done = run(REPLACED + "os.kill(os.getpid(), signal.SIGBUS)\nprint('no')", path)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")
    assert done.stderr.count("Fatal Python error: Bus error") == 1
