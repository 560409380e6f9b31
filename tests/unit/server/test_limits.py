"""The contract's comments, the checks and the options say the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from magnitude.v1 import inference_pb2
from magnitude_service.engine.batch import TOP_LOGPROBS_MAX
from magnitude_service.errors import ConfigurationError
from magnitude_service.scheduling.request import FinishReason, SamplingParameters
from magnitude_service.server import limits
from magnitude_service.server.options import ServerOptions
from magnitude_service.server.parameters import BIAS_MAX, SAMPLING

PROTO = Path(__file__).parents[3] / "proto/magnitude/v1"


def comment(message: str, field: str) -> str:
    """The comment above a field of the contract, on one line."""
    text = "".join(path.read_text() for path in sorted(PROTO.glob("*.proto")))
    body = re.search(rf"\nmessage {message} {{\n(.*?)\n}}", text, re.DOTALL)
    assert body, message
    found = re.search(rf"((?:^ +//[^\n]*\n)+) +(?:[\w<>, ]+ )?{field} = \d+;", body.group(1), re.MULTILINE)
    assert found, field
    return " ".join(line.strip().removeprefix("//").strip() for line in found.group(1).splitlines())


def spelt(number: float) -> str:
    """As the comments write numbers: 65,536 and 0.05."""
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


@pytest.mark.parametrize("bound", SAMPLING, ids=lambda bound: bound.name)
def test_bounds_and_defaults_of_sampling_are_those_in_the_contract(bound: object) -> None:
    text = comment("SamplingParameters", bound.name)  # type: ignore[attr-defined]
    assert f"Default {spelt(bound.default)}." in text  # type: ignore[attr-defined]
    assert spelt(bound.high) in text  # type: ignore[attr-defined]


def test_defaults_of_sampling_are_those_of_the_engines_request() -> None:
    defaults = SamplingParameters()
    assert {bound.name: bound.default for bound in SAMPLING} == {
        bound.name: getattr(defaults, bound.name) for bound in SAMPLING
    }


@pytest.mark.parametrize(
    ("message", "field", "numbers"),
    [
        ("SamplingParameters", "logit_bias", (BIAS_MAX, limits.LOGIT_BIAS_ENTRIES_MAX)),
        ("SamplingParameters", "allowed_token_ids", (limits.ALLOWED_TOKEN_IDS_MAX,)),
        ("SamplingParameters", "n", (limits.CHOICES_MAX,)),
        ("StoppingParameters", "stop_strings", (limits.STOP_STRINGS_MAX, limits.STOP_STRING_BYTES_MAX)),
        ("StoppingParameters", "stop_token_ids", (limits.STOP_TOKEN_IDS_MAX,)),
        ("StoppingParameters", "time_limit_ms", (limits.TIME_LIMIT_MS_MAX,)),
        ("ReturnOptions", "logprobs", (limits.TOP_LOGPROBS_MAX,)),
        ("InferRequest", "request_id", (limits.REQUEST_ID_BYTES_MAX,)),
        ("InferRequest", "priority", (limits.PRIORITY_MAX,)),
        (
            "InferRequest",
            "metadata",
            (limits.METADATA_ENTRIES_MAX, limits.METADATA_KEY_BYTES_MAX, limits.METADATA_VALUE_BYTES_MAX),
        ),
        ("StreamInferRequest", "delta_interval_ms", (limits.DELTA_INTERVAL_MS_MAX,)),
        ("ChatInput", "messages", (limits.MESSAGES_MAX,)),
        ("ChatMessage", "content", (limits.CONTENT_PARTS_MAX,)),
        ("ChatMessage", "tool_calls", (limits.TOOL_CALLS_MAX,)),
        ("ChatMessage", "name", (limits.NAME_BYTES_MAX,)),
        ("ChatInput", "template_arguments_json", (limits.JSON_BYTES_MAX >> 10,)),
        ("ToolCall", "arguments_json", (limits.JSON_BYTES_MAX >> 10,)),
        ("AbortRequest", "request_ids", (limits.ABORTED_REQUESTS_MAX,)),
        ("DetokenizeRequest", "token_ids", (limits.DETOKENIZED_IDS_MAX,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_limits_are_those_in_the_contract(message: str, field: str, numbers: tuple[float, ...]) -> None:
    text = comment(message, field)
    for number in numbers:
        assert re.search(rf"(?<![\d,]){spelt(number)}(?![\d,]*\d)", text), (number, text)


def test_as_many_likeliest_tokens_may_be_asked_for_as_the_engine_gives() -> None:
    assert limits.TOP_LOGPROBS_MAX == TOP_LOGPROBS_MAX


def test_every_reason_of_the_engine_has_its_name_in_the_contract() -> None:
    for reason in FinishReason:
        assert f"FINISH_REASON_{reason.value}" in inference_pb2.FinishReason.keys()  # noqa: SIM118


@pytest.mark.parametrize(
    ("name", "value"), [("port", 65_536), ("port", -1), ("message_bytes_max", 1), ("text_workers", 0)]
)
def test_an_option_out_of_bounds_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ServerOptions(**{name: value})
