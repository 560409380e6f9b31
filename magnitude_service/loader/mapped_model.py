"""A loaded model: its tensors as read-only views of its files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import IntegrityError, PreconditionError
from magnitude_service.formats import Metadata, TensorInfo
from magnitude_service.loader.content_hash import ContentHashStore, content_key, hash_content
from magnitude_service.loader.mapped_file import MappedFile
from magnitude_service.loader.model_spec import ModelSpec, spec_of
from magnitude_service.loader.shards import merged_tensors


@dataclass(frozen=True, eq=False, slots=True)
class MappedTensor:
    """One tensor where it lies in the mapped file.

    *Shapes*: view u8 [info.nbytes], rows of info.row_bytes one after the other.
    *Lifetime*: `view` keeps the memory mapped; `address` is valid as long as the tensor, or any view, is held.
    """

    info: TensorInfo
    address: int
    view: NDArray[np.uint8]


class MappedModel:
    """A model in memory. Use it as a context manager, or close it.

    After every step the engine calls `check` and throws the step's result away where that raises: a file that is
    truncated under its mapping then costs its requests, never the process, and never passes zeros off as weights.
    """

    def __init__(self, path: Path, files: list[MappedFile], hashes: ContentHashStore | None) -> None:
        """Takes over the files. *Raises*: IntegrityError where they contradict each other."""
        merged = merged_tensors(files)
        self.path = path
        self.spec: ModelSpec = spec_of(files, {name: tensor for name, (_, tensor) in merged.items()})
        self._files = files
        self._views = {file.path: file.view for file in files}
        self._tensors = {name: self._bind(file, tensor) for name, (file, tensor) in merged.items()}
        self._hashes = hashes
        self._content_sha256: str | None = None
        self._hashing = threading.Lock()  # guards _content_sha256: one thread hashes, others wait for its result
        self._damage: IntegrityError | None = None
        self._is_closed = False
        self.check()

    @property
    def model_id(self) -> str:
        """The identity of header and layout, see `model_spec.model_id_of`."""
        return self.spec.model_id

    @property
    def views(self) -> tuple[NDArray[np.uint8], ...]:
        """The bytes of each file up to the end of its last tensor, read-only."""
        self._require_open()
        return tuple(self._views.values())

    @property
    def metadata(self) -> Metadata:
        """The key/values; of a split model, its first shard's."""
        self._require_open()
        return self._files[0].header.metadata

    @property
    def tensors(self) -> Mapping[str, MappedTensor]:
        """Every tensor by name, in file order."""
        self._require_open()
        return MappingProxyType(self._tensors)

    def check(self) -> None:
        """Raises IntegrityError where a file was truncated or overwritten since it was mapped; then for ever.

        Costs a microsecond per shard.
        """
        self._require_open()
        if self._damage is not None:
            raise IntegrityError(self._damage.message, remedy=self._damage.remedy, file=self.path) from self._damage
        try:
            for file in self._files:
                file.check()
        except IntegrityError as damage:
            self._damage = damage
            raise

    @property
    def known_content_sha256(self) -> str | None:
        """The content hash, where it has been computed or found already."""
        return self._content_sha256

    def content_sha256(self, *, is_forced: bool = False, is_cancelled: Callable[[], bool] = lambda: False) -> str:
        """SHA-256 of all bytes up to the end of the last tensor (of each shard, in order), in hexadecimal digits.

        Found where it is kept, or else computed, which takes seconds per gigabyte; `is_forced` computes it in any case
        and compares. *Raises*: IntegrityError where it differs from the one that was kept, or a file changed;
        CancelledError.
        """
        with self._hashing:
            if self._content_sha256 is None or is_forced:
                self._content_sha256 = self._find_content_sha256(is_forced, is_cancelled)
            return self._content_sha256

    def close(self) -> None:
        """Lets go of the files. Memory is unmapped when the last view of it is gone. May be called again."""
        self._is_closed = True
        for file in self._files:
            file.close()
        self._files = []
        self._views = {}
        self._tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bind(self, file: MappedFile, tensor: TensorInfo) -> MappedTensor:
        view = self._views[file.path][tensor.offset : tensor.offset + tensor.nbytes]
        return MappedTensor(tensor, file.address + tensor.offset, view)

    def _find_content_sha256(self, is_forced: bool, is_cancelled: Callable[[], bool]) -> str:
        self._require_open()
        key = content_key(self._files, self.model_id)
        kept = self._hashes.read(key) if self._hashes and key else None
        if kept is not None and not is_forced:
            return kept
        computed = hash_content(self._files, is_cancelled)
        if kept is not None and kept != computed:
            assert self._hashes is not None
            assert key is not None
            raise IntegrityError(
                f"{self.path} has the content hash {computed}, but had {kept} at the same time of change.",
                remedy=f"Fetch it again; if it was changed on purpose, delete {self._hashes.path_of(key)}.",
                file=self.path,
            )
        if self._hashes and key and key == content_key(self._files, self.model_id):
            self._hashes.write(key, computed)
        return computed

    def _require_open(self) -> None:
        if self._is_closed:
            raise PreconditionError(f"The model {self.path} is closed.", reason="MODEL_CLOSED", file=self.path)
