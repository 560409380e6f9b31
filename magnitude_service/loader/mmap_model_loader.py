"""Loads models: opens, maps, parses, and touches nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from magnitude_service.loader.content_hash import ContentHashStore
from magnitude_service.loader.mapped_model import MappedModel
from magnitude_service.loader.options import LoaderOptions
from magnitude_service.loader.shards import open_shards


class MMapModelLoader:
    """Maps GGUF files read-only, once. `cache_folder` is where content hashes are kept; None keeps none."""

    def __init__(self, options: LoaderOptions | None = None, *, cache_folder: Path | None = None) -> None:
        self._options = options or LoaderOptions()
        self._hashes = None if cache_folder is None else ContentHashStore(cache_folder)

    def load(self, path: str | os.PathLike[str]) -> MappedModel:
        """The model that a file, or any shard of a split one, holds.

        *Raises*: NotFoundError, FileAccessError, InvalidRequestError (no regular file), IncompatibleVersionError,
        UnsupportedModelError, IntegrityError (unsound, or changed meanwhile), ExhaustedError, PreconditionError.
        *Lifetime*: the caller closes the model.
        """
        path = Path(path)
        files = open_shards(path, self._options)
        try:
            model = MappedModel(path, files, self._hashes)
            if self._options.verify:
                model.content_sha256(is_forced=True)
        except BaseException:
            for file in files:
                file.close()
            raise
        return model
