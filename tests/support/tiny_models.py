"""Writes tiny random GGUF models that a whole server can load: a real byte-level vocabulary, a chat template, and
weights of any quantisation type whose activations stay of order one.

Everything is drawn from NumPy's frozen `RandomState` stream by integer and uniform draws alone, so that a seed gives
the same bytes on every machine and NumPy version: stored vectors name a seed and the SHA-256 of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

TENSOR_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Every type that a weight matrix of a model may have."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "t h", "i n", "a n", "e r", "o n", "l l", "Ġ t", "Ġ a", "Ġt he", "Ġa n", "Ġan d", "he ll", "hell o")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class _Block:
    """Where a quantisation block keeps its float16 fields; everything else in it may be any bits.

    `minimum_ratio` makes the weights' mean zero, given the mean of the codes; `spread` is the standard deviation of a
    weight when the scale is 1.
    """

    elements: int
    size_bytes: int
    scale_offset: int
    spread: float
    minimum_offset: int | None = None
    minimum_ratio: float = 0.0


_BLOCKS = {
    "Q4_0": _Block(32, 18, 0, 4.6),
    "Q4_1": _Block(32, 20, 0, 4.6, 2, -7.5),
    "Q5_0": _Block(32, 22, 0, 9.2),
    "Q5_1": _Block(32, 24, 0, 9.2, 2, -15.5),
    "Q8_0": _Block(32, 34, 0, 74.0),
    "Q4_K": _Block(256, 144, 0, 255.0, 2, 7.5),
    "Q5_K": _Block(256, 176, 0, 521.0, 2, 15.5),
    "Q6_K": _Block(256, 210, 208, 1367.0),
}


def write_tiny_model(
    path: Path,
    architecture: str = "llama",
    tensor_type: str = "F32",
    *,
    seed: int = 1,
    layers: int = 2,
    embedding: int = 256,
    heads: int = 4,
    kv_heads: int = 2,
    feed_forward: int = 512,
    vocabulary: int = 320,
    context: int = 512,
    tied: bool = True,
    biases: bool | None = None,
    frequency_factors: bool = False,
    token_count: int | None = None,
    metadata: Mapping[str, object] | None = None,
    template: str = CHAT_TEMPLATE,
) -> Path:
    """Writes one model and returns its path; the same arguments give the same bytes.

    `tensor_type` is the type of every matrix (K-quants want rows of a multiple of 256); vectors are float32. `biases`
    default to the architecture's habit. `token_count` below `vocabulary` leaves padded embedding rows. `metadata`
    overrides or adds keys without the architecture's prefix ("rope.freq_base"); None drops a key.
    """
    draws = np.random.RandomState(seed)
    writer = gguf.GGUFWriter(path, architecture)
    _write_hyperparameters(
        writer,
        {
            "block_count": layers,
            "context_length": context,
            "embedding_length": embedding,
            "feed_forward_length": feed_forward,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": embedding // max(heads, 1),
            "vocab_size": vocabulary,
            **(metadata or {}),
        },
    )
    _write_vocabulary(writer, vocabulary if token_count is None else token_count)
    writer.add_chat_template(template)
    has_biases = architecture == "qwen2" if biases is None else biases
    sizes = _Sizes(layers, embedding, embedding // heads * kv_heads, feed_forward, vocabulary)
    for name, rows, columns in _matrices(sizes, tied):
        _add_matrix(writer, draws, name, rows, columns, tensor_type, gain=2.0 if columns == embedding else 1.0)
    for name, length, low, high in _vectors(sizes, has_biases):
        writer.add_tensor(name, draws.uniform(low, high, length).astype(np.float32))
    if frequency_factors:
        writer.add_tensor("rope_freqs.weight", draws.uniform(1, 8, embedding // heads // 2).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_matrix(draws: np.random.RandomState, rows: int, columns: int, tensor_type: str, std: float) -> NDArray:
    """A matrix in file form: float32 or float16 [rows, columns], or u8 [rows, bytes of a row] for the others."""
    if tensor_type in ("F32", "F16", "BF16"):
        # Uniform over ±√3·std has standard deviation std, and no function of the C library is in it.
        values = ((draws.random_sample((rows, columns)) - 0.5) * (12**0.5 * std)).astype(np.float32)
        if tensor_type == "F16":
            return values.astype(np.float16)
        if tensor_type == "BF16":
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values
    block = _BLOCKS[tensor_type]
    count, rest = divmod(columns, block.elements)
    assert not rest, f"{tensor_type} wants rows of a multiple of {block.elements}, not {columns}"
    blocks = np.frombuffer(draws.bytes(rows * count * block.size_bytes), np.uint8).reshape(-1, block.size_bytes).copy()
    scale = draws.uniform(0.5, 1.5, len(blocks)) * (std / block.spread)
    _put_float16(blocks, block.scale_offset, scale)
    if block.minimum_offset is not None:
        _put_float16(blocks, block.minimum_offset, scale * block.minimum_ratio)
    return blocks.reshape(rows, count * block.size_bytes)


@dataclass(frozen=True)
class _Sizes:
    layers: int
    embedding: int
    key_value: int
    feed_forward: int
    vocabulary: int


def _write_hyperparameters(writer: gguf.GGUFWriter, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        name = f"{writer.arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)  # type: ignore[arg-type]


def _write_vocabulary(writer: gguf.GGUFWriter, count: int) -> None:
    tokens = [*SPECIAL_TOKENS, *_byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS) + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
    assert count >= len(tokens), f"the vocabulary needs {len(tokens)} entries, not {count}"
    padding = [f"[PAD{index}]" for index in range(len(tokens), count)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + padding)
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * len(padding))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: printable ones stand for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def _matrices(sizes: _Sizes, tied: bool) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of every matrix."""
    yield "token_embd.weight", sizes.vocabulary, sizes.embedding
    if not tied:
        yield "output.weight", sizes.vocabulary, sizes.embedding
    for layer in range(sizes.layers):
        yield f"blk.{layer}.attn_q.weight", sizes.embedding, sizes.embedding
        yield f"blk.{layer}.attn_k.weight", sizes.key_value, sizes.embedding
        yield f"blk.{layer}.attn_v.weight", sizes.key_value, sizes.embedding
        yield f"blk.{layer}.attn_output.weight", sizes.embedding, sizes.embedding
        yield f"blk.{layer}.ffn_gate.weight", sizes.feed_forward, sizes.embedding
        yield f"blk.{layer}.ffn_up.weight", sizes.feed_forward, sizes.embedding
        yield f"blk.{layer}.ffn_down.weight", sizes.embedding, sizes.feed_forward


def _vectors(sizes: _Sizes, has_biases: bool) -> Iterator[tuple[str, int, float, float]]:
    """Name, length and bounds of every float32 vector."""
    yield "output_norm.weight", sizes.embedding, 0.5, 1.5
    for layer in range(sizes.layers):
        yield f"blk.{layer}.attn_norm.weight", sizes.embedding, 0.5, 1.5
        yield f"blk.{layer}.ffn_norm.weight", sizes.embedding, 0.5, 1.5
        if has_biases:
            yield f"blk.{layer}.attn_q.bias", sizes.embedding, -1.0, 1.0
            yield f"blk.{layer}.attn_k.bias", sizes.key_value, -1.0, 1.0
            yield f"blk.{layer}.attn_v.bias", sizes.key_value, -1.0, 1.0


def _add_matrix(
    writer: gguf.GGUFWriter,
    draws: np.random.RandomState,
    name: str,
    rows: int,
    columns: int,
    tensor_type: str,
    gain: float,
) -> None:
    matrix = random_matrix(draws, rows, columns, tensor_type, gain / columns**0.5)
    raw = None if tensor_type in ("F32", "F16") else gguf.GGMLQuantizationType[tensor_type]
    writer.add_tensor(name, matrix, raw_dtype=raw)


def _put_float16(blocks: NDArray[np.uint8], offset: int, values: NDArray[np.float64]) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
