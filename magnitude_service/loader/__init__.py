"""Mapped model files: opened once, read-only, checked, and never copied.

Names are imported when they are first used: the options and the fetching of files need no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnitude_service.formats import Metadata, TensorInfo
    from magnitude_service.loader.mapped_model import MappedModel, MappedTensor
    from magnitude_service.loader.mmap_model_loader import MMapModelLoader
    from magnitude_service.loader.model_spec import ModelSpec, ShardSpec

from magnitude_service.loader.options import LoaderOptions

__all__ = [
    "LoaderOptions",
    "MMapModelLoader",
    "MappedModel",
    "MappedTensor",
    "Metadata",
    "ModelSpec",
    "ShardSpec",
    "TensorInfo",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from magnitude_service.loader import mapped_model, mmap_model_loader, model_spec

    names = {**vars(mapped_model), **vars(mmap_model_loader), **vars(model_spec)}
    return names[name]
