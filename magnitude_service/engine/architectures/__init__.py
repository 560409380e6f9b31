"""The architectures that we know, by the name that files give them: a new one is a file, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from magnitude_service.engine.architectures import llama, qwen2
from magnitude_service.engine.program import Program
from magnitude_service.errors import UnsupportedModelError

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel

ARCHITECTURES: Mapping[str, Callable[[MappedModel], Program]] = {
    "llama": llama.record,
    "qwen2": qwen2.record,
}


def record(model: MappedModel) -> Program:
    """The Program of a mapped model.

    Raises: UnsupportedModelError for an architecture, a hyper-parameter or a set of tensors that we cannot compute;
    QuantizationMismatchError for a tensor of a type that we cannot.
    """
    name = model.metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"The architecture is {name!r}; supported: {', '.join(ARCHITECTURES)}.",
            remedy="Use a model of a supported architecture.",
            field="general.architecture",
        )
    return ARCHITECTURES[name](model)
