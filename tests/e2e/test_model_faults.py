"""Model files that are damaged before or while they are served: an error in words, and a process that lives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude.client import Client
from magnitude.errors import CallError, DataLoss
from magnitude.v1 import common_pb2
from tests.support.serving import eventually, is_idle, magnitude, serving
from tests.support.tiny_models import write_tiny_model

SLOW = {"MAGNITUDE_CPU_ISA": "scalar"}


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    """Another model of the same size, written in place as `cp` does."""
    with path.open("r+b") as file:
        file.seek(40)
        file.write(os.urandom(4000))


@pytest.mark.parametrize("damage", [truncate, overwrite])
def test_a_file_that_is_damaged_while_it_is_served_fails_the_requests_and_not_the_process(
    slow_path: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    copy = Path(shutil.copy(slow_path, tmp_path / "copy.gguf"))
    with serving(copy, variables=SLOW) as served, Client(served.address, retries=False, timeout_seconds=30) as client:
        stream = client.stream("hello", max_tokens=5000, ignore_eos=True)
        next(stream.texts())
        damage(copy)
        with pytest.raises(DataLoss) as caught:
            list(stream)
        assert caught.value.reason == "INTEGRITY"
        assert "copy.gguf was changed while it was in use" in caught.value.message
        with pytest.raises(DataLoss):
            client.infer("hello")
        model = client.health().models[0]
        assert model.state == common_pb2.MODEL_STATE_FAILED
        assert (model.failure.code, model.failure.reason) == ("DATA_LOSS", "INTEGRITY")
        assert "copy.gguf" in model.failure.message
        assert "renaming" in model.failure.remedy
        assert is_idle(client)
        with pytest.raises(DataLoss):
            client.wait_ready(1)
        assert served.process.poll() is None


def test_a_file_that_is_replaced_by_renaming_goes_on_being_served(tiny_path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(tiny_path, tmp_path / "copy.gguf"))
    with serving(copy) as served, Client(served.address) as client:
        before = client.infer("hello", temperature=0, max_tokens=8)
        os.replace(write_tiny_model(tmp_path / "other.gguf", tensor_type="Q4_0", seed=2), copy)
        after = client.infer("hello", temperature=0, max_tokens=8)
        assert (after.choices, after.model_id) == (before.choices, before.model_id)
        copy.unlink()
        assert client.infer("hello", temperature=0, max_tokens=8).choices == before.choices
        assert client.health().models[0].state == common_pb2.MODEL_STATE_READY


def not_gguf(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(5000))


def cut(path: Path) -> None:
    write_tiny_model(path, tensor_type="Q8_0")
    truncate(path)


def unsupported_architecture(path: Path) -> None:
    write_tiny_model(path, "mamba", tensor_type="Q8_0")


def unsupported_tokenizer(path: Path) -> None:
    write_tiny_model(path, tensor_type="Q8_0")
    content = path.read_bytes()
    assert content.count(b"smollm") == 1
    path.write_bytes(content.replace(b"smollm", b"grollm"))


def contradictory(path: Path) -> None:
    write_tiny_model(path, tensor_type="Q8_0", metadata={"embedding_length": 128})


def folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "status", "words"),
    [
        (lambda path: None, 66, "no such file"),
        (not_gguf, 65, "GGUF"),
        (empty, 65, "0 bytes"),
        (cut, 65, "bytes"),
        (unsupported_architecture, 69, "mamba"),
        (unsupported_tokenizer, 69, "grollm"),
        (contradictory, None, "llama."),
        (folder, None, "folder"),
        (fifo, None, "file"),
    ],
    ids=["missing", "no GGUF", "empty", "cut", "architecture", "tokenizer", "contradictory", "folder", "fifo"],
)
def test_a_model_that_cannot_be_served_is_one_line_and_a_status(
    tmp_path: Path, make: Callable[[Path], None], status: int | None, words: str
) -> None:
    path = tmp_path / "model.gguf"
    make(path)
    done = magnitude("serve", "--model", path, "--port", "0", "--threads", "1")
    assert done.stdout == ""
    assert done.stderr.startswith("magnitude: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words.lower() in done.stderr.lower()
    assert "model.gguf" in done.stderr or "GGUF" not in words
    assert done.returncode in ([status] if status else [64, 65, 66, 69, 73, 77])


def test_a_failed_server_still_ends_by_sigterm_with_status_0(tiny_path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(tiny_path, tmp_path / "copy.gguf"))
    with serving(copy) as served, Client(served.address, retries=False) as client:
        truncate(copy)
        with pytest.raises(CallError):
            client.infer("hello")
        eventually(lambda: client.health().models[0].state == common_pb2.MODEL_STATE_FAILED)
