"""What an operator may say about memory. Imports nothing that costs time."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class AllocatorOptions(Options):
    """How much memory a model may use, and for what."""

    context_tokens: int | None = option(
        None,
        "Longest prompt and answer together. Absent: what the model was trained for, or less where memory is short. "
        "A longer one costs key/value pages.",
        minimum=1,
    )
    memory_fraction: float = option(
        0.8,
        "Share of the memory free at start that may be spent. A larger one holds more sequences; other processes "
        "that grow later find less.",
        minimum=0.01,
        maximum=1.0,
    )
    budget_bytes: int | None = option(
        None, "Bytes that may be spent, instead of a share of the free memory.", minimum=1 << 20
    )
    cache_type: str = option(
        "f16",
        "Element of the key/value cache. f32 rounds nothing; f16 and bf16 take half of its memory, f16 rounds less, "
        "bf16 has a wider range; q8_0 takes about a quarter at a small loss, q4_0 a seventh at a large one.",
        choices=("f16", "f32", "bf16", "q8_0", "q4_0"),
    )
