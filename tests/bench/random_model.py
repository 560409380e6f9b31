"""A model of Llama-3-8B's shapes and Q4_K_M's mix of types, with random blocks: 4.9 GB that cost nothing to come by.

    python -m tests.bench.random_model

Writes `llama-3-8b-shapes-q4_k_m.gguf` beside the other models, unless it is there, and prints its path. Every layer has
the same blocks, at places of its own: caches see as many bytes as of a real model. Nothing that it says means anything,
which is why it has no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from magnitude_service.config import cache_folder

NAME = "llama-3-8b-shapes-q4_k_m.gguf"
VOCABULARY = 128_256
EMBEDDING = 4_096
FEED_FORWARD = 14_336
LAYERS = 32
HEADS = 32
KV_HEADS = 8
KV_WIDTH = EMBEDDING // HEADS * KV_HEADS

Q4_K = GGMLQuantizationType.Q4_K
Q6_K = GGMLQuantizationType.Q6_K

SCALE_OFFSETS = {Q4_K: (0, 2), Q6_K: (208,)}
"""Where a block keeps its f16 scales; everything else in it may be any bytes."""
SCALES = np.float16([2e-5, 8e-5])
"""Range of those scales: weights of a few hundredths."""


def has_more_bits(layer: int) -> bool:
    """Whether a layer's value and down projections are Q6_K in Q4_K_M."""
    eighth = LAYERS // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def shapes() -> Iterator[tuple[str, int, int, GGMLQuantizationType]]:
    """Name, outputs, inputs and type of every quantised tensor."""
    yield "token_embd.weight", VOCABULARY, EMBEDDING, Q4_K
    for layer in range(LAYERS):
        better = Q6_K if has_more_bits(layer) else Q4_K
        yield f"blk.{layer}.attn_q.weight", EMBEDDING, EMBEDDING, Q4_K
        yield f"blk.{layer}.attn_k.weight", KV_WIDTH, EMBEDDING, Q4_K
        yield f"blk.{layer}.attn_v.weight", KV_WIDTH, EMBEDDING, better
        yield f"blk.{layer}.attn_output.weight", EMBEDDING, EMBEDDING, Q4_K
        yield f"blk.{layer}.ffn_gate.weight", FEED_FORWARD, EMBEDDING, Q4_K
        yield f"blk.{layer}.ffn_up.weight", FEED_FORWARD, EMBEDDING, Q4_K
        yield f"blk.{layer}.ffn_down.weight", EMBEDDING, FEED_FORWARD, better
    yield "output.weight", VOCABULARY, EMBEDDING, Q6_K


def random_blocks(outputs: int, inputs: int, kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    """[outputs, bytes of a row]."""
    draws = np.random.default_rng((outputs, inputs, int(kind)))
    elements, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = draws.integers(0, 256, (outputs * inputs // elements, block_bytes), np.uint8)
    for offset in SCALE_OFFSETS[kind]:
        scales = draws.uniform(*SCALES.astype(np.float64), len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(outputs, -1)


def write(path: Path) -> None:
    """Writes the whole file under a name of its own and gives it its name at the end."""
    unfinished = path.with_suffix(".part")
    writer = GGUFWriter(unfinished, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(8_192)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    made: dict[tuple[int, int, GGMLQuantizationType], NDArray[np.uint8]] = {}
    for name, outputs, inputs, kind in shapes():
        key = (outputs, inputs, kind)
        if key not in made:
            made[key] = random_blocks(*key)
        writer.add_tensor(name, made[key], raw_dtype=kind)
    norms = [f"blk.{layer}.{norm}.weight" for layer in range(LAYERS) for norm in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm.weight"):
        writer.add_tensor(name, np.ones(EMBEDDING, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def random_model() -> Path:
    """The file, made if it is not there."""
    path = cache_folder("") / "models" / NAME
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    return path


if __name__ == "__main__":
    print(random_model())
