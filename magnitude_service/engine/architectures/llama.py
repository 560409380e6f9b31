"""Llama (also SmolLM2, Mistral 7B, TinyLlama): the plain decoder that the others are compared with.

RMS norm before attention and before the gated feed-forward, grouped key/value heads, rotary positions on
neighbouring pairs; biases in attention only where a file has them. The output matrix may be tied to the embedding;
`rope_freqs.weight` (Llama 3.1) divides the angles.

Source: Touvron et al., "LLaMA", arXiv 2302.13971; names of keys and tensors: the GGUF specification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnitude_service.engine.hyperparameters import Hyperparameters
from magnitude_service.engine.program import Attribute, CacheShape, Op, Program, ProgramBuilder
from magnitude_service.engine.tensors import TensorRole, check_tensors

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel

TENSORS = (
    TensorRole("token_embd.weight", "V×E"),
    TensorRole("blk.{layer}.attn_norm.weight", "E"),
    TensorRole("blk.{layer}.attn_q.weight", "H·D×E"),
    TensorRole("blk.{layer}.attn_q.bias", "H·D", required=False),
    TensorRole("blk.{layer}.attn_k.weight", "K·D×E"),
    TensorRole("blk.{layer}.attn_k.bias", "K·D", required=False),
    TensorRole("blk.{layer}.attn_v.weight", "K·D×E"),
    TensorRole("blk.{layer}.attn_v.bias", "K·D", required=False),
    TensorRole("blk.{layer}.attn_output.weight", "E×H·D"),
    TensorRole("blk.{layer}.attn_output.bias", "E", required=False),
    TensorRole("blk.{layer}.ffn_norm.weight", "E"),
    TensorRole("blk.{layer}.ffn_gate.weight", "F×E"),
    TensorRole("blk.{layer}.ffn_up.weight", "F×E"),
    TensorRole("blk.{layer}.ffn_down.weight", "E×F"),
    TensorRole("output_norm.weight", "E"),
    TensorRole("output.weight", "V×E", required=False),
    TensorRole("rope_freqs.weight", "D/2", required=False),
)


def record(model: MappedModel) -> Program:
    """The forward pass, instruction by instruction. Raises what `check_tensors` and `from_metadata` raise."""
    sizes = Hyperparameters.from_metadata(model.metadata, "llama")
    tensors = check_tensors(model, TENSORS, sizes)

    def weights(name: str) -> tuple[str, ...]:
        return (name + ".weight", name + ".bias") if name + ".bias" in model.tensors else (name + ".weight",)

    factors = ("rope_freqs.weight",) if "rope_freqs.weight" in model.tensors else ()
    output = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
    queries, keys = sizes.heads * sizes.head_size, sizes.key_value_heads * sizes.head_size
    rotation: dict[str, Attribute] = {
        "head_size": sizes.head_size,
        "dimensions": sizes.rope_dimensions,
        "base": sizes.rope_base,
        "scale": sizes.rope_scale,
        "style": "pairs",
    }
    attention = {"heads": sizes.heads, "key_value_heads": sizes.key_value_heads, "head_size": sizes.head_size}
    scale, epsilon = sizes.head_size**-0.5, sizes.epsilon
    build = ProgramBuilder()
    add = build.add

    add(Op.EMBED, (), "x", sizes.embedding, "token_embd.weight")
    for layer in range(sizes.layers):
        block = f"blk.{layer}."
        add(Op.NORM, ("x",), "normed", sizes.embedding, block + "attn_norm.weight", layer=layer, epsilon=epsilon)
        add(Op.MATMUL, ("normed",), "q", queries, *weights(block + "attn_q"), layer=layer)
        add(Op.MATMUL, ("normed",), "k", keys, *weights(block + "attn_k"), layer=layer)
        add(Op.MATMUL, ("normed",), "v", keys, *weights(block + "attn_v"), layer=layer)
        add(Op.ROPE, ("q",), "q", queries, *factors, layer=layer, heads=sizes.heads, **rotation)
        add(Op.ROPE, ("k",), "k", keys, *factors, layer=layer, heads=sizes.key_value_heads, **rotation)
        add(Op.ATTENTION, ("q", "k", "v"), "attended", queries, layer=layer, scale=scale, **attention)
        add(Op.MATMUL, ("attended",), "branch", sizes.embedding, *weights(block + "attn_output"), layer=layer)
        add(Op.ADD, ("x", "branch"), "x", sizes.embedding, layer=layer)
        add(Op.NORM, ("x",), "normed", sizes.embedding, block + "ffn_norm.weight", layer=layer, epsilon=epsilon)
        add(Op.MATMUL, ("normed",), "gate", sizes.feed_forward, block + "ffn_gate.weight", layer=layer)
        add(Op.MATMUL, ("normed",), "up", sizes.feed_forward, block + "ffn_up.weight", layer=layer)
        add(Op.GATED_ACTIVATION, ("gate", "up"), "gated", sizes.feed_forward, layer=layer, activation="silu")
        add(Op.MATMUL, ("gated",), "branch", sizes.embedding, block + "ffn_down.weight", layer=layer)
        add(Op.ADD, ("x", "branch"), "x", sizes.embedding, layer=layer)
    add(Op.NORM, ("x",), "normed", sizes.embedding, "output_norm.weight", epsilon=epsilon)
    add(Op.LOGITS, ("normed",), "logits", tensors.vocabulary, output)

    cache = CacheShape(sizes.layers, sizes.key_value_heads, sizes.head_size)
    instructions = tuple(build.instructions)
    return Program(
        "llama", tensors.vocabulary, sizes.context_length, cache, build.buffers, instructions, tensors.unused
    )
