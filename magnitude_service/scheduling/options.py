"""What an operator may say about steps and queues, and what a model says about requests. Imports nothing that
costs time."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.errors import ConfigurationError
from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class SchedulingOptions(Options):
    """How much one step computes, and how many requests run and wait."""

    rows_max: int = option(
        512,
        "Rows (tokens) of one step. More is faster for prompts, and costs scratch memory and time per step.",
        minimum=1,
        maximum=65536,
    )
    output_rows_max: int = option(
        64,
        "Rows of one step that want logits. More is faster where log-probabilities of prompts are asked for.",
        minimum=1,
        maximum=65536,
    )
    sequences_max: int = option(
        16,
        "Answers that are computed at the same time. More give a higher total and a slower stream each.",
        minimum=1,
        maximum=4096,
    )
    prefill_rows_while_decoding: int = option(
        128,
        "Prompt rows of a step while answers are being generated. Fewer keep running streams smooth; more let new "
        "requests begin sooner.",
        minimum=1,
        maximum=65536,
    )
    waiting_max: int = option(
        256,
        "Requests in the queue; one more is refused. A longer queue refuses fewer and makes more of them wait.",
        minimum=1,
        maximum=65536,
    )

    sessions_live_max: int = option(
        256,
        "Sessions that are live at the same time. For one more, one that is saved and not in use ends.",
        minimum=1,
        maximum=65536,
    )
    session_pages_seconds: float = option(
        600.0,
        "An idle session keeps its key/value pages for so long, unless a request lacks them; then its tokens are "
        "computed again at its next use.",
        minimum=0,
    )

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        for name in ("rows_max", "output_rows_max"):
            if getattr(self, name) < self.sequences_max:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}, less than the {self.sequences_max} of sequences_max: "
                    "each running answer needs a row in every step.",
                    remedy=f"Raise {name}, or lower sequences_max.",
                    field=name,
                )


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a loaded model allows: prompt and answer together, and ids below `vocabulary_size`."""

    context_tokens: int
    vocabulary_size: int
