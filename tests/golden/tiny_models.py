"""The tiny float32 models of tiny/: which arguments of `write_tiny_model` make them, and what was evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.tiny_models import write_tiny_model

VECTORS = Path(__file__).parent / "tiny"

MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architecture": "llama", "seed": 11},
    "llama-variant": {
        "architecture": "llama",
        "seed": 12,
        "tied": False,
        "biases": True,
        "frequency_factors": True,
        "metadata": {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    },
    "qwen2": {"architecture": "qwen2", "seed": 13, "tied": False},
}
"""Between them: rotation of pairs and halves, scaled and with factors; tied and untied outputs; with biases and
without; two and four query heads for each key/value head."""

SIZES: Mapping[str, Any] = {"embedding": 64, "heads": 4, "feed_forward": 96, "layers": 3}
TOKEN_COUNT = 40
"""More than one page."""


def write(name: str, folder: Path) -> Path:
    """Makes one of the models again."""
    arguments = MODELS[name]
    kv_heads = 1 if name == "llama-variant" else 2
    return write_tiny_model(folder / f"{name}.gguf", tensor_type="F32", kv_heads=kv_heads, **SIZES, **arguments)


def tokens_of(name: str) -> NDArray[np.int32]:
    """What was evaluated: any ids will do, and none of them is special."""
    draws = np.random.RandomState(MODELS[name]["seed"])
    return draws.randint(3, 300, TOKEN_COUNT).astype(np.int32)


def sha256(path: Path) -> str:
    """Of a whole file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
