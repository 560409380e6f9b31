"""Models that are split over several files, `NAME-00001-of-00003.gguf`: which files belong together.

The metadata says whether and how a model is split (split.count, split.no, split.tensors.count); the file names say
where the other shards are; both must agree. Source: ggml/docs/gguf.md, "File naming"; the keys that gguf-split writes.
"""

from __future__ import annotations

import re
from pathlib import Path

from magnitude_service.errors import IntegrityError, NotFoundError
from magnitude_service.formats import Metadata, TensorInfo
from magnitude_service.loader.mapped_file import MappedFile
from magnitude_service.loader.options import LoaderOptions

SHARDS_MAX = 1000
NAME_PATTERN = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.gguf)", re.DOTALL)
COUNT_KEY, NUMBER_KEY, TENSOR_COUNT_KEY = "split.count", "split.no", "split.tensors.count"


def open_shards(path: Path, options: LoaderOptions) -> list[MappedFile]:
    """The files of a model in their order, found from any one of them.

    *Raises*: NotFoundError naming a missing shard; IntegrityError where shards contradict each other.
    """
    files = {path: MappedFile(path, options)}
    try:
        paths = shard_paths(path, files[path].header.metadata)
        for number, shard_path in enumerate(paths, start=1):
            if shard_path not in files:
                files[shard_path] = _open_shard(shard_path, number, len(paths), options)
        ordered = [files[shard_path] for shard_path in paths]
        if len(ordered) > 1:
            _check_numbers(ordered)
        return ordered
    except BaseException:
        for file in files.values():
            file.close()
        raise


def shard_paths(path: Path, metadata: Metadata) -> list[Path]:
    """The paths of all shards of the model of which `path` is one; just `path` where it is not split."""
    count = metadata.integer(COUNT_KEY, default=1, minimum=0, maximum=SHARDS_MAX)
    if count <= 1:
        return [path]
    number = metadata.integer(NUMBER_KEY, minimum=0, maximum=count - 1) + 1
    found = NAME_PATTERN.fullmatch(path.name)
    expected = f"-{number:05d}-of-{count:05d}.gguf"
    if found is None or (int(found["number"]), int(found["count"])) != (number, count):
        raise IntegrityError(
            f"{path} is shard {number} of {count} by its metadata, but its name does not end in {expected}.",
            remedy="Give the shards back their names: the other ones are found by them.",
            file=path,
            field=COUNT_KEY,
        )
    return [path.with_name(f"{found['stem']}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1)]


def merged_tensors(files: list[MappedFile]) -> dict[str, tuple[MappedFile, TensorInfo]]:
    """Every tensor with its file. *Raises*: IntegrityError for a name in two shards or a wrong total."""
    merged: dict[str, tuple[MappedFile, TensorInfo]] = {}
    for file in files:
        for name, tensor in file.header.tensors.items():
            if name in merged:
                raise IntegrityError(
                    f"Tensor '{name}' stands both in {merged[name][0].path} and in {file.path}.",
                    remedy="The shards do not belong together; fetch all of them again.",
                    file=file.path,
                    field=name,
                )
            merged[name] = file, tensor
    metadata = files[0].header.metadata
    if len(files) > 1 and TENSOR_COUNT_KEY in metadata:
        total = metadata.integer(TENSOR_COUNT_KEY)
        if total != len(merged):
            raise IntegrityError(
                f"{files[0].path}: {TENSOR_COUNT_KEY} is {total}, but the shards hold {len(merged)} tensors.",
                remedy="The shards do not belong together; fetch all of them again.",
                file=files[0].path,
                field=TENSOR_COUNT_KEY,
            )
    return merged


def _open_shard(path: Path, number: int, count: int, options: LoaderOptions) -> MappedFile:
    try:
        return MappedFile(path, options)
    except NotFoundError as error:
        raise NotFoundError(
            f"Shard {number} of {count} is missing: {path}.",
            remedy="All shards must stand in one folder; fetch the missing one.",
            reason="MODEL_NOT_FOUND",
            file=path,
        ) from error


def _check_numbers(files: list[MappedFile]) -> None:
    for number, file in enumerate(files):
        for key, expected in ((COUNT_KEY, len(files)), (NUMBER_KEY, number)):
            found = file.header.metadata.integer(key)
            if found != expected:
                raise IntegrityError(
                    f"{file.path}: {key} is {found}, but by its name it must be {expected}.",
                    remedy="The shards do not belong together, or were renamed; fetch all of them again.",
                    file=file.path,
                    field=key,
                )
