"""Whether the numbers of a mapped model can be computed with: every floating-point field of it is finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import IntegrityError
from magnitude_service.loader.mapped_model import MappedModel, MappedTensor

CHUNK_BLOCKS = 1 << 18

FLOAT16_FIELDS: Mapping[str, tuple[int, ...]] = {
    "F16": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Offsets of the float16 scales and minima in a block of each type; the other bits of a block are integers."""


def check_finite(model: MappedModel, *, progress: Callable[[str], None] = lambda _: None) -> int:
    """Reads every tensor whose type is known here and returns how many; the others hold nothing that this could judge.

    Raises: IntegrityError naming the first tensor, and the element or block, that is NaN or infinite.
    """
    count = 0
    for name, tensor in model.tensors.items():
        progress(name)
        block = _first_not_finite(tensor)
        if block is not None:
            type_ = tensor.info.type
            row, rest = divmod(block * type_.block_elements, tensor.info.shape[0])
            raise IntegrityError(
                f"{model.path}: {name} is not finite in row {row}, element {rest}: "
                f"{'a scale of that block' if type_.block_elements > 1 else 'it'} is NaN or infinite.",
                remedy="Fetch or convert the model again.",
                file=model.path,
                tensor=name,
            )
        count += tensor.info.type.name in _READERS
    model.check()
    return count


def _first_not_finite(tensor: MappedTensor) -> int | None:
    """The number of the first block (of one element for plain types) that holds a NaN or an infinity."""
    type_ = tensor.info.type
    read = _READERS.get(type_.name)
    if read is None:
        return None
    blocks = tensor.view.reshape(-1, type_.block_bytes)
    for begin in range(0, len(blocks), CHUNK_BLOCKS):
        bad = ~np.isfinite(read(blocks[begin : begin + CHUNK_BLOCKS])).all(axis=1)
        if bad.any():
            return begin + int(bad.argmax())
    return None


Reader = Callable[[NDArray[np.uint8]], NDArray[np.floating]]
"""The floating-point fields of blocks. Shapes: u8 [blocks, bytes] → [blocks, fields]."""


def _float16_fields(offsets: tuple[int, ...]) -> Reader:
    columns = [offset + byte for offset in offsets for byte in (0, 1)]

    def read(blocks: NDArray[np.uint8]) -> NDArray[np.floating]:
        return np.ascontiguousarray(blocks[:, columns]).view("<f2")

    return read


def _float32(blocks: NDArray[np.uint8]) -> NDArray[np.floating]:
    return np.ascontiguousarray(blocks).view("<f4")


def _bfloat16(blocks: NDArray[np.uint8]) -> NDArray[np.floating]:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


_READERS: Mapping[str, Reader] = {
    "F32": _float32,
    "BF16": _bfloat16,
    **{name: _float16_fields(offsets) for name, offsets in FLOAT16_FIELDS.items()},
}
