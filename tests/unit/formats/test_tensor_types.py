"""The table of tensor types against the package that it was generated from."""

from __future__ import annotations

import gguf

from magnitude_service.formats import TENSOR_TYPES, TensorType
from magnitude_service.formats.generate_tensor_types import TARGET, with_table


def test_the_table_is_what_the_generator_makes() -> None:
    text = TARGET.read_text(encoding="utf-8")
    assert with_table(text) == text


def test_every_type_of_the_gguf_package_has_its_id_name_and_block_size() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {kind.id: (kind.name, kind.block_elements, kind.block_bytes) for kind in TensorType}
    assert ours == theirs
    assert {id: kind.name for id, kind in TENSOR_TYPES.items()} == {id: kind[0] for id, kind in theirs.items()}


def test_row_bytes_count_whole_blocks() -> None:
    assert TensorType.Q4_K.row_bytes(512) == 288
    assert TensorType.F32.row_bytes(7) == 28
