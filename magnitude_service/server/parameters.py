"""How tokens are chosen and when an answer ends: `sampling` and `stopping` of a request, checked."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from magnitude.v1 import inference_pb2
from magnitude_service.scheduling.request import SamplingParameters, StoppingParameters
from magnitude_service.scheduling.session import Session
from magnitude_service.server import bounds, limits
from magnitude_service.server.served_models import ModelDescription, Tokenizer


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of `sampling`: low…high, its default, and whether `low` itself is out."""

    name: str
    low: float
    high: float
    default: float
    above: bool = False


SAMPLING: tuple[Bound, ...] = (
    Bound("temperature", 0, 2, 0.8),
    Bound("top_k", 0, 1_000_000, 40),
    Bound("top_p", 0, 1, 0.95, above=True),
    Bound("min_p", 0, 1, 0.05),
    Bound("typical_p", 0, 1, 1, above=True),
    Bound("repetition_penalty", 0, 10, 1, above=True),
    Bound("penalty_window", 0, 65_536, 64),
    Bound("presence_penalty", -2, 2, 0),
    Bound("frequency_penalty", -2, 2, 0),
)
"""Bounds and defaults; the contract's comments say the same. Defaults are llama.cpp's."""

BIAS_MAX = 100.0


def sampling_parameters(
    message: inference_pb2.SamplingParameters, vocabulary_size: int, path: str, session: Session | None = None
) -> SamplingParameters:
    """How a token is chosen. Without a seed the session's goes on, or one is drawn."""
    kept = None if session is None else session.seed
    numbers = {}
    for bound in SAMPLING:
        given = getattr(message, bound.name) if message.HasField(bound.name) else bound.default
        numbers[bound.name] = bounds.number(path + bound.name, given, bound.low, bound.high, above=bound.above)
    bounds.count(f"{path}logit_bias", len(message.logit_bias), limits.LOGIT_BIAS_ENTRIES_MAX)
    for token, bias in message.logit_bias.items():
        bounds.token_id(f"{path}logit_bias[{token}]", token, vocabulary_size)
        bounds.number(f"{path}logit_bias[{token}]", bias, -BIAS_MAX, BIAS_MAX)
    allowed = bounds.token_ids(
        f"{path}allowed_token_ids", message.allowed_token_ids, limits.ALLOWED_TOKEN_IDS_MAX, vocabulary_size
    )
    return SamplingParameters(
        **numbers,  # type: ignore[arg-type]
        seed=message.seed if message.HasField("seed") else secrets.randbits(64) if kept is None else kept,
        logit_bias=dict(message.logit_bias),
        allowed_token_ids=frozenset(allowed.tolist()) if allowed.size else None,
    )


def stopping_parameters(
    message: inference_pb2.StoppingParameters, description: ModelDescription, tokenizer: Tokenizer, path: str
) -> StoppingParameters:
    """When an answer ends; stop strings are matched above."""
    max_tokens = message.max_tokens if message.HasField("max_tokens") else None
    most = description.context_tokens if max_tokens is None else max_tokens
    bounds.number(f"{path}min_tokens", message.min_tokens, 0, most)
    bounds.count(f"{path}stop_strings", len(message.stop_strings), limits.STOP_STRINGS_MAX)
    for index, text in enumerate(message.stop_strings):
        bounds.length(f"{path}stop_strings[{index}]", text, 1, limits.STOP_STRING_BYTES_MAX)
    if message.HasField("time_limit_ms"):
        bounds.number(f"{path}time_limit_ms", message.time_limit_ms, 1, limits.TIME_LIMIT_MS_MAX)
    stops = bounds.token_ids(
        f"{path}stop_token_ids", message.stop_token_ids, limits.STOP_TOKEN_IDS_MAX, description.vocabulary_size
    )
    return StoppingParameters(
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=frozenset(stops.tolist()),
        end_token_ids=frozenset() if message.ignore_eos else tokenizer.eog_ids,
        time_limit_seconds=message.time_limit_ms / 1_000 if message.HasField("time_limit_ms") else None,
    )
