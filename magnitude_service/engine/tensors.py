"""Which tensors an architecture needs, and whether a file has them: the pattern of the name, the shape in letters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnitude_service.engine.hyperparameters import Hyperparameters, vocabulary_size
from magnitude_service.errors import QuantizationMismatchError, UnsupportedModelError

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel, TensorInfo

MATRIX_TYPES = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"})
VECTOR_TYPES = frozenset({"F32"})

STANDARD_NAME = re.compile(r"(blk\.|output|token_|rope_|position_)")
"""How names of a forward pass's tensors begin: to leave out one that an architecture does not know would be wrong."""


@dataclass(frozen=True, slots=True)
class TensorRole:
    """One tensor, or one for each layer where the pattern has {layer}. `shape` is a matrix "N×K" or a vector "N" in
    the letters of program.py: "H·D×E"."""

    pattern: str
    shape: str
    required: bool = True

    def names(self, layers: int) -> Sequence[str]:
        """The names in a file."""
        if "{layer}" not in self.pattern:
            return (self.pattern,)
        return [self.pattern.format(layer=layer) for layer in range(layers)]


@dataclass(frozen=True, slots=True)
class CheckedTensors:
    """What a file was found to hold."""

    vocabulary: int
    """Ids that the tokenizer knows; the matrices of V rows may be padded beyond."""
    unused: tuple[str, ...]
    """Tensors that have nothing to do with the forward pass."""


def check_tensors(model: MappedModel, roles: Sequence[TensorRole], sizes: Hyperparameters) -> CheckedTensors:
    """Holds a file against what its architecture needs.

    Raises: UnsupportedModelError naming the tensor that is missing, has another shape, or belongs to a forward pass
    that is not ours, and what `vocabulary_size` raises; QuantizationMismatchError.
    """
    embedding = model.tensors.get("token_embd.weight")
    rows = embedding.info.shape[-1] if embedding is not None else 0
    letters = {
        "V": rows,
        "E": sizes.embedding,
        "F": sizes.feed_forward,
        "H·D": sizes.heads * sizes.head_size,
        "K·D": sizes.key_value_heads * sizes.head_size,
        "D/2": sizes.rope_dimensions // 2,
    }
    left = set(model.tensors)
    for role in roles:
        wanted = tuple(letters[letter] for letter in reversed(role.shape.split("×")))
        for name in role.names(sizes.layers):
            left.discard(name)
            tensor = model.tensors.get(name)
            if tensor is not None:
                _check(name, tensor.info, wanted, role.shape)
            elif role.required:
                raise UnsupportedModelError(
                    f"The tensor {name} ({role.shape}) is missing.",
                    remedy="Fetch or convert the model again.",
                    tensor=name,
                )
    architecture = model.metadata.text("general.architecture")
    unknown = sorted(name for name in left if STANDARD_NAME.match(name))
    if unknown:
        raise UnsupportedModelError(
            f"The tensor {unknown[0]} has no part in {architecture} of {sizes.layers} layers as we compute it.",
            remedy="Use another model.",
            tensor=unknown[0],
        )
    unused = tuple(name for name in model.tensors if name in left)
    return CheckedTensors(vocabulary_size(model.metadata, architecture, rows), unused)


def _check(name: str, info: TensorInfo, wanted: tuple[int, ...], letters: str) -> None:
    if tuple(info.shape) != wanted:
        raise UnsupportedModelError(
            f"The tensor {name} has the shape {list(info.shape)}; {letters} is {list(wanted)} here.",
            remedy="Fetch or convert the model again.",
            tensor=name,
        )
    types = MATRIX_TYPES if len(wanted) == 2 else VECTOR_TYPES
    if info.type.name not in types:
        raise QuantizationMismatchError(
            f"The tensor {name} is {info.type.name}; supported: {', '.join(sorted(types))}.",
            remedy="Quantise the model to one of these.",
            tensor=name,
        )
