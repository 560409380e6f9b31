"""The Python client without a server: what it builds, and how it reads errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import magnitude
from magnitude.client import Client, chat_message, infer_request
from magnitude.errors import CallError, Exhausted, InvalidRequest, Unavailable, call_error
from magnitude.v1 import common_pb2, inference_pb2

README = Path(__file__).parents[3] / "clients/python/README.md"


def test_a_prompt_is_text_ids_or_messages() -> None:
    assert infer_request("hi").text == "hi"
    assert list(infer_request([1, 2]).token_ids.ids) == [1, 2]
    [message] = infer_request([{"role": "user", "content": "hi"}]).chat.messages
    assert (message.role, message.content[0].text) == (common_pb2.ROLE_USER, "hi")


def test_options_are_found_in_the_parts_of_the_request() -> None:
    request = infer_request(
        "hi",
        temperature=0,
        max_tokens=3,
        stop_strings=["x"],
        add_special=False,
        model="m",
        return_options={"echo": True},
    )
    assert request.sampling.HasField("temperature")
    assert request.stopping == inference_pb2.StoppingParameters(max_tokens=3, stop_strings=["x"])
    assert request.tokenization.HasField("add_special")
    assert (request.model, request.return_options.echo) == ("m", True)


def test_an_option_that_is_none_stays_absent() -> None:
    assert infer_request("hi", temperature=None, max_tokens=None) == inference_pb2.InferRequest(text="hi")


def test_an_unknown_option_or_role_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="temprature"):
        infer_request("hi", temprature=1)
    with pytest.raises(ValueError, match="wizard"):
        chat_message({"role": "wizard", "content": "x"})


def test_messages_keep_parts_tool_calls_and_names() -> None:
    call = common_pb2.ToolCall(id="1", name="f", arguments_json="{}")
    message = chat_message({"role": "assistant", "content": ["a", "b"], "name": "bot", "tool_calls": [call]})
    assert [part.text for part in message.content] == ["a", "b"]
    assert message.tool_calls[0] == call
    assert chat_message(message) is message


class Failed:
    """What grpc raises, as far as the client looks at it."""

    def __init__(self, code: grpc.StatusCode, *details: object, status: bytes | None = None) -> None:
        self._code = code
        made = status_pb2.Status(code=code.value[0], message="m")
        for detail in details:
            made.details.add().Pack(detail)
        self._status = made.SerializeToString() if status is None else status

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "m"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return (("grpc-status-details-bin", self._status),)


def test_an_error_is_read_from_its_details() -> None:
    info = error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="magnitude.dev", metadata={"waiting_max": "8"})
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1_500)
    error = call_error(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, info, retry))
    assert isinstance(error, Exhausted)
    assert (error.reason, error.details, error.retry_after_seconds) == ("QUEUE_FULL", {"waiting_max": "8"}, 1.5)


def test_fields_at_fault_are_read_from_bad_request() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="a.b", description="why")
    error = call_error(
        Failed(grpc.StatusCode.INVALID_ARGUMENT, error_details_pb2.BadRequest(field_violations=[violation]))
    )
    assert isinstance(error, InvalidRequest)
    assert error.field_violations == {"a.b": "why"}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_becomes_a_call_error(code: grpc.StatusCode) -> None:
    error = call_error(Failed(code))
    assert isinstance(error, CallError)
    assert error.code is code
    assert code.name in str(error)


def test_nobody_at_the_address_is_unavailable() -> None:
    with Client("127.0.0.1:1", timeout_seconds=5, retries=False) as client, pytest.raises(Unavailable):
        client.infer("x")


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ValueError, match="TLS"):
        Client("127.0.0.1:1", token="secret")
    Client("127.0.0.1:1", token="secret", credentials=grpc.ssl_channel_credentials()).close()


def test_what_fails_was_not_said_in_a_conversation() -> None:
    with Client("127.0.0.1:1", timeout_seconds=5, retries=False) as client:
        chat = client.conversation([{"role": "system", "content": "Be brief."}])
        with pytest.raises(Unavailable):
            chat.say("hello")
        assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_importing_the_package_imports_nothing_that_costs_time() -> None:
    code = (
        "import sys, magnitude; print(sorted(m for m in sys.modules if m.split('.')[0] in ('grpc', 'google', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lazy_names_are_there_and_others_are_not() -> None:
    assert magnitude.Client is Client
    assert magnitude.__version__ == "0.1.0"
    with pytest.raises(AttributeError, match="nothing"):
        _ = magnitude.nothing


def test_names_in_the_readme_exist() -> None:
    text = README.read_text()
    for block in text.split("```python")[1:]:
        compile(block.split("```")[0], str(README), "exec")
    for name in ("infer", "stream", "call", "models"):
        assert f"client.{name}" in text
