"""`magnitude inspect`: what it shows, and that `--check` finds a mistake in every part of a file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from magnitude_service.cli import commands
from magnitude_service.errors import IntegrityError
from tests.support.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNITUDE_CACHE_DIR", str(tmp_path / "cache"))


def test_a_sound_file_is_sound(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["inspect", "--check", str(tiny_model)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{tiny_model}: GGUF v3, llama, ")
    assert [line.split()[:2] for line in err.splitlines()] == [
        [part, "ok:"] for part in ("content", "tensors", "tokenizer", "template", "program")
    ]


def test_json_and_tensors(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["inspect", "--json", "--tensors", str(tiny_model)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["architecture"] == "llama"
    assert found["metadata"]["llama.context_length"] == 512
    assert found["metadata"]["tokenizer.ggml.tokens"].startswith("array of STRING [320] ")
    assert len(found["model_id"]) == 64
    assert len(found["tensors"]) == found["tensor_count"]
    first = found["tensors"][0]
    assert (first["name"], first["type"], first["shape"]) == ("token_embd.weight", "Q8_0", [256, 320])
    assert commands.run(["inspect", "--tensors", str(tiny_model)]) == 0
    assert "token_embd.weight  Q8_0  [256, 320]  87,040 bytes at " in capsys.readouterr().out


def _poison(name: str) -> Callable[[Path], Path]:
    def change(path: Path) -> Path:
        [tensor] = [each for each in gguf.GGUFReader(path).tensors if each.name == name]
        content = bytearray(path.read_bytes())
        content[tensor.data_offset + 2 * 34 : tensor.data_offset + 2 * 34 + 2] = np.float16("nan").tobytes()
        path.write_bytes(content)
        return path

    return change


def _rewritten(**metadata: object) -> Callable[[Path], Path]:
    return lambda path: write_tiny_model(path, tensor_type="Q8_0", metadata=metadata)


def _without_a_tensor(path: Path) -> Path:
    write_tiny_model(path, tensor_type="Q8_0")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight"))
    return path


def _with_another_text(old: bytes, new: bytes) -> Callable[[Path], Path]:
    def change(path: Path) -> Path:
        content = path.read_bytes()
        assert len(old) == len(new)
        assert old in content
        path.write_bytes(content.replace(old, new))
        return path

    return change


@pytest.mark.parametrize(
    ("change", "part", "status", "words"),
    [
        (_poison("token_embd.weight"), "tensors", 65, "token_embd.weight is not finite in row 0, element 64"),
        (_poison("blk.1.ffn_down.weight"), "tensors", 65, "blk.1.ffn_down.weight is not finite in row 0"),
        (_with_another_text(b"smollm", b"unsmol"), "tokenizer", 69, "tokenizer.ggml.pre is 'unsmol'"),
        (_with_another_text(b"{% endfor %}", b"{% endfur %}"), "template", 69, "line"),
        (_rewritten(**{"attention.head_count": 7}), "program", 69, "head_count"),
        (_without_a_tensor, "program", 69, "blk.1.ffn_up.weight"),
    ],
    ids=["embedding", "matrix", "tokenizer", "template", "hyper-parameter", "tensor"],
)
def test_check_names_the_part_that_fails_and_verifies_the_others(
    change: Callable[[Path], Path],
    part: str,
    status: int,
    words: str,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = change(Path(shutil.copy(tiny_model, tmp_path / "m.gguf")))
    assert commands.run(["inspect", "--check", str(path)]) == status
    lines = {line.split()[0]: line for line in capsys.readouterr().err.splitlines()}
    assert list(lines) == ["content", "tensors", "tokenizer", "template", "program"]
    failed = [name for name, line in lines.items() if " FAILED: " in line]
    assert failed == [part], lines
    assert words in lines[part]


@pytest.mark.parametrize("size", [10, 5_000, -1])
def test_a_file_that_was_cut_is_damaged(size: int, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model.read_bytes()[:size])
    with pytest.raises(IntegrityError) as raised:
        commands.run(["inspect", "--check", str(path)])
    assert raised.value.exit_code == 65


def test_content_that_changed_at_the_same_time_of_change_is_found(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copy2(tiny_model, tmp_path / "m.gguf"))
    os.utime(path, ns=(0, 1_700_000_000_000_000_000))
    assert commands.run(["inspect", "--check", str(path)]) == 0
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    os.utime(path, ns=(0, 1_700_000_000_000_000_000))
    capsys.readouterr()
    assert commands.run(["inspect", "--check", str(path)]) == 65
    assert "content    FAILED: " in capsys.readouterr().err
