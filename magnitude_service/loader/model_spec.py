"""What a model is, in plain data: identity, format, and the shape, type and place of every tensor."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from magnitude_service.errors import IntegrityError
from magnitude_service.formats import Metadata, TensorInfo
from magnitude_service.loader.mapped_file import MappedFile

ARCHITECTURE_KEY = "general.architecture"
ARCHITECTURE_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One file of a model; most models have one."""

    file_name: str
    file_bytes: int  # when it was loaded; a tail behind the model counts
    header_bytes: int
    data_offset: int
    model_end: int
    tensor_count: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as its header describes it."""

    model_id: str  # 64 hexadecimal digits, see `model_id_of`
    architecture: str
    name: str  # general.name, or the file's name without its ending
    format_version: int
    alignment: int
    file_bytes: int  # of all shards
    tensor_bytes: int  # of all tensors, without padding
    tensors: Mapping[str, TensorInfo]  # in file order, shard after shard; offsets are within the shard
    shards: tuple[ShardSpec, ...]


def model_id_of(files: Sequence[MappedFile]) -> str:
    """SHA-256, in hexadecimal digits, over the header bytes and the end of the last tensor.

    Hashed are, for each shard in its order: its header (from the magic to the end of the last tensor info, without
    padding), then the offset of the end of its last tensor as an unsigned 64-bit little-endian number. A file that is
    not split is its only shard. The header says where it ends, so no two sequences of shards hash the same bytes.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.header_view.data)
        digest.update(file.header.model_end.to_bytes(8, "little"))
    return digest.hexdigest()


def spec_of(files: Sequence[MappedFile], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """The spec of a model from its shards. *Raises*: IntegrityError for a missing or absurd architecture."""
    first = files[0]
    metadata = first.header.metadata
    architecture = metadata.text(ARCHITECTURE_KEY)
    if not ARCHITECTURE_PATTERN.fullmatch(architecture):
        raise IntegrityError(
            f"{first.path}: {ARCHITECTURE_KEY} is {architecture[:64]!r}; it must be 1 to 64 letters, digits, '_', '.' "
            "or '-'.",
            file=first.path,
            field=ARCHITECTURE_KEY,
        )
    return ModelSpec(
        model_id=model_id_of(files),
        architecture=architecture,
        name=_name(metadata) or first.path.stem,
        format_version=first.header.version,
        alignment=first.header.alignment,
        file_bytes=sum(file.status.st_size for file in files),
        tensor_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        tensors=MappingProxyType(dict(tensors)),
        shards=tuple(
            ShardSpec(
                file_name=file.path.name,
                file_bytes=file.status.st_size,
                header_bytes=file.header.header_bytes,
                data_offset=file.header.data_offset,
                model_end=file.header.model_end,
                tensor_count=len(file.header.tensors),
            )
            for file in files
        ),
    )


def _name(metadata: Metadata) -> str:
    """general.name on one line; a name is for people, so a bad one is mended, not refused."""
    found = metadata.value("general.name") if "general.name" in metadata else ""
    text = found if isinstance(found, str) else ""
    return "".join(c if c.isprintable() else " " for c in text[:NAME_CHARACTERS_MAX]).strip()
