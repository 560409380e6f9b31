"""What every decoder-only transformer says of itself in its metadata, checked before it is believed.

Keys that would change the computation in a way that no architecture of ours knows are refused by name (`NEUTRAL`):
never is a model computed with one of its settings left out. Keys that only describe are not looked at.

Source: names and meaning of keys: ggml/docs/gguf.md, and what llama.cpp's converter writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnitude_service.errors import UnsupportedModelError

if TYPE_CHECKING:
    from magnitude_service.loader import Metadata

LAYERS_MAX = 1_024
WIDTH_MAX = 1 << 20
CONTEXT_MAX = 1 << 27

TOKENS = "tokenizer.ggml.tokens"

NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "use_parallel_residual": (False,),
}
"""Key below the architecture → the values that say "as usual"; 0 is how converters write "not used"."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Sizes of the model. Letters as in program.py."""

    layers: int  # L
    embedding: int  # E
    heads: int  # H
    key_value_heads: int  # K, divides H
    head_size: int  # D
    feed_forward: int  # F
    context_length: int  # tokens
    epsilon: float
    rope_dimensions: int  # of each head, even, at most D
    rope_base: float
    rope_scale: float  # positions are divided by it

    @classmethod
    def from_metadata(cls, metadata: Metadata, architecture: str) -> Hyperparameters:
        """Reads the keys below `architecture`.

        Raises: UnsupportedModelError naming the key, the value and what it must be; what `metadata` raises for keys
        that are absent, of another type or out of bounds.
        """
        _refuse_unknown_features(metadata, architecture)

        def size(name: str, maximum: int, default: int | None = None) -> int:
            return _size(metadata, f"{architecture}.{name}", maximum, default)

        embedding = size("embedding_length", WIDTH_MAX)
        heads = size("attention.head_count", WIDTH_MAX)
        key_value_heads = size("attention.head_count_kv", WIDTH_MAX, heads)
        if f"{architecture}.attention.key_length" not in metadata:
            _require(embedding % heads == 0, f"{architecture}.attention.head_count", heads, f"divide {embedding}")
        head_size = size("attention.key_length", WIDTH_MAX, embedding // heads)
        value_size = size("attention.value_length", WIDTH_MAX, embedding // heads)
        dimensions = size("rope.dimension_count", WIDTH_MAX, head_size)
        context_length = size("context_length", CONTEXT_MAX)
        _require(
            heads % key_value_heads == 0, f"{architecture}.attention.head_count_kv", key_value_heads, f"divide {heads}"
        )
        _require(value_size == head_size, f"{architecture}.attention.value_length", value_size, f"be {head_size}")
        fits = dimensions % 2 == 0 and dimensions <= head_size
        _require(fits, f"{architecture}.rope.dimension_count", dimensions, f"be even and at most {head_size}")
        _require_whole_window(metadata, architecture, context_length)
        return cls(
            layers=size("block_count", LAYERS_MAX),
            embedding=embedding,
            heads=heads,
            key_value_heads=key_value_heads,
            head_size=head_size,
            feed_forward=size("feed_forward_length", WIDTH_MAX),
            context_length=context_length,
            epsilon=_epsilon(metadata, f"{architecture}.attention.layer_norm_rms_epsilon"),
            rope_dimensions=dimensions,
            rope_base=metadata.real(f"{architecture}.rope.freq_base", 10_000.0, minimum=1.0, maximum=1e12),
            rope_scale=_rope_scale(metadata, architecture),
        )


def vocabulary_size(metadata: Metadata, architecture: str, rows: int) -> int:
    """V: how many ids there are, of which each has a row of the embedding. Rows beyond are padding: no id names them.

    The tokenizer decides; without one, `vocab_size`, or else the rows.

    Raises: UnsupportedModelError, where an id has no row, or `vocab_size` contradicts tokens and rows.
    """
    tokens = len(metadata.strings(TOKENS)) if TOKENS in metadata else None
    if tokens is not None:
        _require(1 <= tokens <= rows, TOKENS, f"a list of {tokens}", f"have 1 to {rows}, the rows of token_embd.weight")
    key = f"{architecture}.vocab_size"
    stated = _size(metadata, key, rows if tokens is None else WIDTH_MAX << 10, rows if tokens is None else tokens)
    if tokens is None:
        return stated
    allowed = f"be {tokens}, the tokens of the tokenizer, or {rows}, the rows of token_embd.weight"
    _require(stated in (tokens, rows), key, stated, allowed)
    return tokens


def _size(metadata: Metadata, key: str, maximum: int, default: int | None = None) -> int:
    if key in metadata:
        kind = metadata.type_of(key)
        _require(not kind.startswith("array"), key, f"an {kind}", "be one number: layers that differ are not supported")
    elif default is not None:
        return default
    return metadata.integer(key, minimum=1, maximum=maximum)


def _epsilon(metadata: Metadata, key: str) -> float:
    epsilon = metadata.real(key, minimum=0.0, maximum=1.0)
    _require(epsilon > 0, key, epsilon, "be above 0")
    return epsilon


def _rope_scale(metadata: Metadata, architecture: str) -> float:
    """Linear scaling divides positions; other kinds change angles in ways of their own and are refused by name.

    A factor without a kind is linear: files from before there were kinds have only the factor, called `scale_linear`.
    """
    key, factor = f"{architecture}.rope.scaling.type", f"{architecture}.rope.scaling.factor"
    kind = metadata.text(key, "")
    _require(kind in ("", "none", "linear"), key, kind, "be none or linear")
    if factor not in metadata:
        factor = f"{architecture}.rope.scale_linear"
    if kind == "none" or (kind == "" and factor not in metadata):
        return 1.0
    return metadata.real(factor, minimum=1e-3, maximum=1e6)


def _require_whole_window(metadata: Metadata, architecture: str, context_length: int) -> None:
    """A sliding window as wide as the context hides nothing; a narrower one would be another attention.

    Files of models that were trained with full attention carry the key too, with the width of the context, or 0.
    """
    key = f"{architecture}.attention.sliding_window"
    if key not in metadata:
        return
    window = metadata.integer(key, minimum=0)
    _require(window == 0 or window >= context_length, key, window, f"be 0, or at least {context_length}, the context")


def _refuse_unknown_features(metadata: Metadata, architecture: str) -> None:
    for name, neutral in NEUTRAL.items():
        key = f"{architecture}.{name}"
        if key in metadata:
            usual = not metadata.type_of(key).startswith("array") and metadata[key] in neutral
            allowed = " or ".join(str(value) for value in neutral)
            _require(usual, key, metadata.describe(key), f"be {allowed}: nothing else is supported")


def _require(holds: bool, key: str, value: object, wanted: str) -> None:
    if not holds:
        raise UnsupportedModelError(f"{key} is {value}; it must {wanted}.", remedy="Use another model.", field=key)
