"""Loading: what a model is, and how it is held in memory."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from magnitude_service.errors import (
    IncompatibleVersionError,
    IntegrityError,
    PreconditionError,
)
from magnitude_service.formats import TensorType
from magnitude_service.loader import LoaderOptions, MappedModel, MMapModelLoader
from tests.support import gguf_bytes as raw
from tests.support.gguf_bytes import write_model
from tests.support.privileges import as_owner, without_privileges


def load(path: Path | str, **options: bool) -> MappedModel:
    return MMapModelLoader(LoaderOptions(**options)).load(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small.gguf")


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that everybody may enter, and a process without privileges while the test runs."""
    with without_privileges() as folder:
        yield folder


def test_a_model_offers_its_spec_metadata_and_tensors(path: Path) -> None:
    with load(path) as model:
        spec = model.spec
        assert (spec.architecture, spec.name, spec.format_version, spec.alignment) == ("llama", "Größe 1", 3, 32)
        assert (spec.file_bytes, spec.tensor_bytes) == (path.stat().st_size, 100)
        assert spec.model_id == model.model_id
        assert spec.shards[0].file_name == "small.gguf"
        assert spec.shards[0].tensor_count == 2
        assert model.metadata.text("general.name") == "Größe 1"
        assert list(model.tensors) == ["a.weight", "b.weight"]
        assert model.tensors["b.weight"].info is spec.tensors["b.weight"]
        assert spec.tensors["b.weight"].type is TensorType.Q4_0


def test_a_tensor_is_a_read_only_view_of_the_mapped_file(path: Path) -> None:
    with load(path) as model:
        tensor = model.tensors["a.weight"]
        assert tensor.view.tobytes() == bytes(range(64))
        assert (tensor.view.dtype, tensor.view.flags.writeable) == (np.uint8, False)
        assert tensor.address == tensor.view.ctypes.data
        [mapping] = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
        begin, end = (int(address, 16) for address in mapping.split()[0].split("-"))
        assert begin <= tensor.address < end


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages to ask for"
)
def test_a_model_is_mapped_with_the_wish_for_large_pages(path: Path) -> None:
    model = load(path)
    mappings = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{path}\n")
    assert len(mappings) == 2, "the file is mapped once"
    flags = next(line for line in mappings[1].splitlines() if line.startswith("VmFlags:"))
    assert "hg" in flags.split()
    model.close()


def test_a_view_outlives_its_model(path: Path) -> None:
    with load(path) as model:
        view = model.tensors["a.weight"].view
        tokens = model.metadata.strings("tokens")
    del model
    path.unlink()
    assert view.tobytes() == bytes(range(64))
    assert tokens[0] == b"a"


def test_memory_and_descriptor_go_when_model_and_views_are_gone(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    model = load(path)
    model.close()
    del model
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failed_load_leaves_no_descriptor_behind(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    path.write_bytes(path.read_bytes()[:300])
    for _ in range(3):
        with pytest.raises(IntegrityError):
            load(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_close_may_be_called_again_and_then_nothing_is_offered(path: Path) -> None:
    model = load(path)
    model.close()
    model.close()
    for use in (lambda: model.tensors, lambda: model.metadata, model.check, model.content_sha256):
        with pytest.raises(PreconditionError, match="is closed"):
            use()
    assert model.spec.architecture == "llama"


def test_model_id_is_the_hash_of_header_and_model_end(path: Path) -> None:
    data = path.read_bytes()
    with load(path) as model:
        shard = model.spec.shards[0]
        expected = hashlib.sha256(data[: shard.header_bytes] + raw.u64(len(data))).hexdigest()
        assert model.model_id == expected


def test_a_tail_changes_neither_identity_nor_hash(path: Path) -> None:
    tailed = write_model(path.with_name("tailed.gguf"), tail=b"a session" * 1000)
    with load(path) as plain, load(tailed) as other:
        assert plain.model_id == other.model_id
        assert plain.content_sha256() == other.content_sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
        assert other.spec.file_bytes == tailed.stat().st_size


def test_weights_change_the_content_hash_alone_and_headers_both(path: Path) -> None:
    other, renamed = raw.small_model(), raw.small_model()
    other.data = bytes(reversed(other.data))
    renamed.key_values[1] = raw.key_value(b"general.name", raw.text(b"another"))
    with (
        load(path) as first,
        load(write_model(path.with_name("w.gguf"), other)) as weights,
        load(write_model(path.with_name("h.gguf"), renamed)) as header,
    ):
        assert first.model_id == weights.model_id != header.model_id
        assert len({first.content_sha256(), weights.content_sha256(), header.content_sha256()}) == 3


@pytest.mark.parametrize(
    ("architecture", "message"),
    [(None, "general.architecture is missing"), (b"", "must be 1 to 64 letters"), (b"a b\x1b[2J", "must be 1 to 64")],
)
def test_a_missing_or_absurd_architecture_is_refused(path: Path, architecture: bytes | None, message: str) -> None:
    model = raw.small_model()
    model.key_values[0:1] = (
        [] if architecture is None else [raw.key_value(b"general.architecture", raw.text(architecture))]
    )
    with pytest.raises(IntegrityError, match=message):
        load(write_model(path, model))


def test_without_a_fit_name_the_files_name_is_used(path: Path) -> None:
    model = raw.small_model()
    model.key_values[1] = raw.key_value(b"general.name", raw.text(b"bad\xff\x1bname\n"))
    with load(write_model(path, model)) as mended:
        assert mended.spec.name == "bad\\xff name"
    del model.key_values[1]
    with load(write_model(path, model)) as unnamed:
        assert unnamed.spec.name == "small"


def test_without_mmap_the_model_is_a_private_copy_that_no_truncation_reaches(path: Path) -> None:
    with load(path, mmap=False) as model:
        assert str(path) not in Path("/proc/self/maps").read_text()
        path.write_bytes(b"")
        model.check()
        assert model.tensors["a.weight"].view.tobytes() == bytes(range(64))
        assert not model.tensors["a.weight"].view.flags.writeable
        assert model.metadata.text("general.name") == "Größe 1"
        assert list(model.metadata.strings("tokens"))[1] == b"\xff\xfe"


def test_a_private_copy_leaves_the_tail_behind_and_has_the_same_identity(path: Path) -> None:
    with load(path) as mapped:
        expected = mapped.model_id, mapped.content_sha256()
    write_model(path, tail=bytes(1 << 20))
    with load(path, mmap=False, populate=True) as model:
        assert (model.model_id, model.content_sha256()) == expected


def test_populate_reads_the_file_and_changes_nothing_else(path: Path) -> None:
    with load(path, populate=True) as model:
        assert model.tensors["a.weight"].view.tobytes() == bytes(range(64))


def test_mlock_pins_the_model_and_not_the_tail(path: Path) -> None:
    write_model(path, tail=bytes(1 << 20))
    with load(path, mlock=True):
        status = Path("/proc/self/status").read_text()
        locked = int(status.partition("VmLck:")[2].split()[0])
    assert 0 < locked <= 8


def test_mlock_over_the_limit_names_the_limit_and_the_remedy(nobodys_folder: Path) -> None:
    path = nobodys_folder / "m.gguf"
    as_owner(path, 0o644)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    try:
        with pytest.raises(PreconditionError) as raised:
            load(path, mlock=True)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    assert "RLIMIT_MEMLOCK is 0 bytes" in str(raised.value)
    assert "ulimit -l" in raised.value.remedy


def test_by_default_files_are_mapped_and_options_are_frozen() -> None:
    options = LoaderOptions()
    assert options.mmap
    assert not any((options.mlock, options.populate, options.verify, options.allow_invalid_magic))
    with pytest.raises(AttributeError):
        options.mmap = False  # type: ignore[misc]


def test_another_magic_needs_the_option(path: Path) -> None:
    path.write_bytes(b"MAGN" + path.read_bytes()[4:])
    with pytest.raises(IncompatibleVersionError, match="--allow-invalid-magic"):
        load(path)
    load(path, allow_invalid_magic=True).close()


@pytest.mark.model
def test_real_models_load_without_touching_their_weights(qwen_path: Path) -> None:
    with load(qwen_path) as model:
        maps = Path("/proc/self/smaps").read_text().split(str(qwen_path.resolve()))[1:]
        resident_kib = sum(int(part.partition("Rss:")[2].split()[0]) for part in maps)
        assert resident_kib < 16 << 10
        assert model.spec.architecture == "qwen2"
        assert len(model.tensors) == 339


def test_options_and_fetching_load_no_numpy() -> None:
    script = (
        "import sys, magnitude_service.loader.options, magnitude_service.loader.fetch; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
