"""Models that are split over several files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from magnitude_service.errors import (
    IntegrityError,
    NotFoundError,
)
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.support import gguf_bytes as raw
from tests.support.gguf_bytes import write_model


def load(path: Path | str) -> MappedModel:
    return MMapModelLoader().load(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small.gguf")


def write_split(folder: Path, shards: int = 3, **overrides: int) -> list[Path]:
    """Shards of one F32 tensor [8] each; an override (`count_2`, `number_3`, `total_1`) makes one lie."""
    paths = []
    for number in range(1, shards + 1):
        count = overrides.get(f"count_{number}", shards)
        no = overrides.get(f"number_{number}", number - 1)
        total = overrides.get(f"total_{number}", shards)
        model = raw.GGUFBytes(
            key_values=[
                *(raw.small_model().key_values[:2] if number == 1 else []),
                raw.key_value(b"split.no", raw.scalar(raw.U16, no)),
                raw.key_value(b"split.count", raw.scalar(raw.U16, count)),
                raw.key_value(b"split.tensors.count", raw.scalar(raw.I32, total)),
            ],
            tensors=[raw.tensor_info(b"blk.%d" % number, [8])],
            data=bytes([number] * 32),
        )
        paths.append(write_model(folder / f"m-{number:05d}-of-{shards:05d}.gguf", model))
    return paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_a_split_model_is_loaded_from_any_of_its_shards(tmp_path: Path, given: int) -> None:
    paths = write_split(tmp_path)
    with load(paths[given]) as model:
        assert list(model.tensors) == ["blk.1", "blk.2", "blk.3"]
        assert [tensor.view[0] for tensor in model.tensors.values()] == [1, 2, 3]
        assert model.spec.name == "Größe 1"
        assert [shard.file_name for shard in model.spec.shards] == [path.name for path in paths]
        contents = [path.read_bytes() for path in paths]
        identity = hashlib.sha256()
        for content, shard in zip(contents, model.spec.shards, strict=True):
            identity.update(content[: shard.header_bytes] + raw.u64(shard.model_end))
        assert model.model_id == identity.hexdigest()
        assert model.content_sha256() == hashlib.sha256(b"".join(contents)).hexdigest()


def test_a_split_model_of_the_gguf_package_is_loaded(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2, small_first_shard=True)
    for index in range(4):
        writer.add_tensor(f"t{index}", np.full(8, index, np.float32))
    writer.write_header_to_file(tmp_path / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with load(tmp_path / "m-00002-of-00003.gguf") as model:
        values = {name: float(tensor.view.view("<f4")[0]) for name, tensor in model.tensors.items()}
    assert values == {"t0": 0.0, "t1": 1.0, "t2": 2.0, "t3": 3.0}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[1].unlink()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotFoundError, match=f"Shard 2 of 3 is missing: {paths[1]}"):
        load(paths[2])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_renamed_shard_is_told_what_its_name_should_be(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(IntegrityError, match=r"is shard 1 of 3 by its metadata, .* end in -00001-of-00003\.gguf"):
        load(renamed)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"count_2": 2}, "split.count is 2, but by its name it must be 3"),
        ({"number_3": 0}, "split.no is 0, but by its name it must be 2"),
        ({"total_1": 4}, "split.tensors.count is 4, but the shards hold 3 tensors"),
        ({"count_1": 60_000}, "split.count is 60000; it must lie in 0 … 1000"),
        ({"number_1": 3}, "split.no is 3; it must lie in 0 … 2"),
    ],
)
def test_shards_that_contradict_each_other_are_refused(tmp_path: Path, lie: dict[str, int], message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        load(write_split(tmp_path, **lie)[0])


def test_a_tensor_in_two_shards_is_refused_with_both_names(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 2)
    paths[1].write_bytes(paths[1].read_bytes().replace(b"blk.2", b"blk.1"))
    with pytest.raises(IntegrityError, match=f"'blk.1' stands both in {paths[0]} and in {paths[1]}"):
        load(paths[0])


def test_a_name_like_a_shards_does_not_make_a_split_model(path: Path) -> None:
    with load(path.rename(path.with_name("m-00001-of-00009.gguf"))) as model:
        assert len(model.tensors) == 2
