"""Every floating-point field of every type is looked at: a NaN in any of them is found, with its place."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from magnitude_service.engine.tensors import MATRIX_TYPES
from magnitude_service.errors import IntegrityError
from magnitude_service.formats.tensor_types import TensorType
from magnitude_service.loader import MMapModelLoader, soundness
from tests.support.tiny_models import write_tiny_model

ROW = 3
FIELDS = [
    *(("F32", 0), ("BF16", 0)),
    *((name, offset) for name, offsets in soundness.FLOAT16_FIELDS.items() for offset in offsets),
]


def test_every_type_that_we_compute_with_is_known() -> None:
    assert {name for name, _ in FIELDS} == MATRIX_TYPES


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "offset"), FIELDS)
def test_a_number_that_is_not_finite_is_found_where_it_stands(
    name: str, offset: int, bad: float, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", tensor_type=name, layers=1)
    with MMapModelLoader().load(path) as model:
        assert soundness.check_finite(model) == len(model.tensors)
        tensor = model.tensors["blk.0.ffn_down.weight"].info
    with path.open("r+b") as file:
        file.seek(tensor.offset + ROW * tensor.row_bytes + offset)
        file.write(_encoded(name, bad))
    with MMapModelLoader().load(path) as model, pytest.raises(IntegrityError) as raised:
        soundness.check_finite(model)
    assert "blk.0.ffn_down.weight is not finite in row 3, element 0: " in raised.value.message
    assert raised.value.details["tensor"] == "blk.0.ffn_down.weight"


def _encoded(name: str, number: float) -> bytes:
    if name == "F32":
        return np.float32(number).tobytes()
    if name == "BF16":
        return np.float32(number).tobytes()[2:]
    return np.float16(number).tobytes()


@pytest.mark.parametrize("name", sorted(soundness.FLOAT16_FIELDS.keys() - {"F16"}))
def test_the_fields_are_those_of_the_oracle(name: str) -> None:
    """A block of zeros but for a NaN in one of our fields dequantises to NaN; elsewhere no bits do."""
    kind = gguf.GGMLQuantizationType[name]
    size = TensorType[name].block_bytes
    for offset in range(0, size - 1):
        block = np.zeros(size, np.uint8)
        block[offset : offset + 2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
        with np.errstate(invalid="ignore"):
            is_nan = bool(np.isnan(gguf.dequantize(block, kind)).any())
        if offset in soundness.FLOAT16_FIELDS[name]:
            assert is_nan, offset
        elif not any(abs(offset - field) < 2 for field in soundness.FLOAT16_FIELDS[name]):
            assert not is_nan, offset
