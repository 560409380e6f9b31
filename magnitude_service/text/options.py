"""What an operator may say about chat templates. Imports nothing that costs time."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class TemplateOptions(Options):
    """What rendering a chat template may cost. The template comes with the model file, so it may be hostile."""

    template_seconds: float = option(
        2.0,
        "Longest time for one rendering, and half a second more for each megabyte of it; then its process is killed.",
        minimum=0.05,
        maximum=60,
    )
    template_memory_bytes: int = option(
        512 << 20,
        "Address space of the template's process. It holds a few copies of the longest conversation.",
        minimum=64 << 20,
        maximum=16 << 30,
    )
    template_text_bytes_max: int = option(
        16 << 20, "Largest conversation, and largest rendered text.", minimum=1 << 10, maximum=1 << 30
    )
    template_source_bytes_max: int = option(
        1 << 20, "Largest chat template that is taken from a model file.", minimum=1 << 10, maximum=64 << 20
    )
