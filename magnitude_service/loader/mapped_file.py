"""One GGUF file in memory, and the watch over it."""

from __future__ import annotations

import errno
import hashlib
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import (
    ExhaustedError,
    IntegrityError,
    MagnitudeError,
    PreconditionError,
)
from magnitude_service.formats import Header, _formats, parse_header
from magnitude_service.loader.file_access import open_regular
from magnitude_service.loader.options import LoaderOptions

READ_BYTES = 64 << 20
"""How much one system call reads into private memory: small enough for Ctrl-C."""

WATCHED_FRONT_BYTES = 4 << 10
WATCHED_BACK_BYTES = 64 << 10
"""The first bytes of the header (general.*) and the last ones (tensor infos): what `check` compares after a write."""


class MappedFile:
    """A model file, or one shard of a split one: header, bytes, and whether both can still be trusted.

    *Lifetime*: `view` and everything cut from it keep the memory mapped, also after `close`.
    """

    def __init__(self, path: Path, options: LoaderOptions) -> None:
        """Opens, maps and parses. *Raises*: whatever `open_regular` and `parse_header` raise; ExhaustedError and
        PreconditionError where the system refuses the memory."""
        descriptor, self.status = open_regular(path)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self.path = path
        self.is_mapped = options.mmap
        try:
            self._mapping = self._made(_formats.map_file(descriptor, self.status.st_size), "mapped")
            self.header = self._parse(options)
            if options.mmap:
                self._require(self._mapping.trim(self.header.model_end), "trimmed")
            else:
                self._copy(options)
            self._hold(options)
            self._fingerprint = self._watched_bytes_hash()
            self._last_written = self.status.st_mtime_ns, self.status.st_size
            self._settle(options)
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> NDArray[np.uint8]:
        """The bytes up to the end of the last tensor, read-only."""
        return self._mapping.view

    @property
    def address(self) -> int:
        """Where `view` begins."""
        return self._mapping.address

    @property
    def header_view(self) -> NDArray[np.uint8]:
        """The bytes of the header, without the padding."""
        return self.view[: self.header.header_bytes]

    def check(self) -> None:
        """Raises IntegrityError where the file under the mapping was truncated or overwritten.

        Costs one fstat unless the file was written to. Growth behind the last tensor is no change.
        """
        if not self.is_mapped:
            return  # a private copy: nobody can change it
        status = os.fstat(self._descriptor)
        if self._mapping.is_damaged or status.st_size < self.header.model_end:
            raise self._truncated(status.st_size)
        if (status.st_mtime_ns, status.st_size) != self._last_written:
            if self._watched_bytes_hash() != self._fingerprint:
                raise self._changed("its header is not the one that was loaded")
            self._last_written = status.st_mtime_ns, status.st_size

    def current_status(self) -> os.stat_result:
        """The file's status now."""
        return os.fstat(self._descriptor)

    def close(self) -> None:
        """Closes the descriptor; the memory goes with its last view."""
        self._close()

    def _parse(self, options: LoaderOptions) -> Header:
        view = self._mapping.view
        try:
            return parse_header(
                view,
                source=str(self.path),
                file_bytes=max(self.status.st_size, len(view)),
                allow_invalid_magic=options.allow_invalid_magic,
            )
        except MagnitudeError as error:
            if self._mapping.is_damaged:
                raise self._truncated(os.fstat(self._descriptor).st_size) from error
            raise

    def _copy(self, options: LoaderOptions) -> None:
        """Replaces the mapping by private memory with the same bytes."""
        size = self.header.model_end
        private = self._made(_formats.allocate(size), "copied into memory")
        target = private.writable_view.data
        position = 0
        while position < size:
            count = os.preadv(self._descriptor, [target[position : position + READ_BYTES]], position)
            if count == 0:
                raise self._truncated(position)
            position += count
        self._require(private.seal(), "sealed")
        if (
            self.current_status().st_mtime_ns != self.status.st_mtime_ns
            and private.view[: self.header.header_bytes].tobytes() != self.header_view.tobytes()
        ):
            raise self._changed("it was written to while it was copied")
        self._mapping = private
        self.header = self._parse(options)

    def _settle(self, options: LoaderOptions) -> None:
        """Raises where the file was rewritten between opening it and now."""
        status = self.current_status()
        if self.is_mapped and status.st_mtime_ns != self.status.st_mtime_ns:
            again = self._parse(options)
            if (again.tensors, again.header_bytes) != (self.header.tensors, self.header.header_bytes):
                raise self._changed("its header is not the one that was read first")
        self._last_written = status.st_mtime_ns, status.st_size
        self.check()

    def _hold(self, options: LoaderOptions) -> None:
        if options.mlock:
            self._lock()
        elif options.populate and options.mmap:
            self._mapping.populate()

    def _lock(self) -> None:
        status = self._mapping.lock()
        if status in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
            import resource

            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,} bytes"
            raise PreconditionError(
                f"{self.path} cannot be locked in memory: mlock of {self.header.model_end:,} bytes failed "
                f"({os.strerror(status)}); RLIMIT_MEMLOCK is {allowed}.",
                remedy="Raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity, docker --ulimit memlock=-1), or leave "
                "out --mlock.",
                reason="MEMORY_LOCK_LIMIT",
                file=self.path,
            )
        self._require(status, "locked in memory")

    def _watched_bytes_hash(self) -> bytes:
        header = self.header_view
        return hashlib.sha256(header[:WATCHED_FRONT_BYTES].tobytes() + header[-WATCHED_BACK_BYTES:].tobytes()).digest()

    def _made(self, mapping: _formats.Mapping | int, verb: str) -> _formats.Mapping:
        if isinstance(mapping, int):
            self._require(mapping, verb)
            raise AssertionError("a mapping is made or an errno is given")
        return mapping

    def _require(self, status: int, verb: str) -> None:
        """Raises for an errno other than 0."""
        if status == 0:
            return
        message = f"{self.path} cannot be {verb}: {os.strerror(status)}."
        if status in (errno.ENOMEM, errno.EMFILE, errno.EAGAIN):
            raise ExhaustedError(
                message,
                remedy="Free memory or address space (`ulimit -v`), or unload a model.",
                reason="MEMORY_EXHAUSTED",
                file=self.path,
            )
        raise PreconditionError(message, remedy="--no-mmap reads it into memory instead.", file=self.path)

    def _truncated(self, size: int) -> IntegrityError:
        """What to say when the file has `size` bytes, too few or so many again."""
        end = self.header.model_end if hasattr(self, "header") else self.status.st_size
        if size >= end:
            return self._changed("a page of it could not be read; it was shorter for a while, or the disk failed")
        return self._changed(f"it has {size:,} bytes now, and the model ends at {end:,}")

    def _changed(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"{self.path} was changed while it was in use: {what}. What was computed since cannot be trusted.",
            remedy="Put the whole file back and load the model again; replace model files by renaming, never in place.",
            file=self.path,
        )
