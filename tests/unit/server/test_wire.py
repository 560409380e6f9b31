"""Request bytes that are no request, and those that would cost too much to read."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.errors import Exhausted, InvalidRequest, call_error
from magnitude.v1 import inference_pb2
from magnitude_service.errors import MagnitudeError
from magnitude_service.server.wire import FIELDS_MAX, Refused, count_fields, deserializer

InferRequest = inference_pb2.InferRequest
BYTES_MAX = 32 << 20
decode = deserializer(InferRequest, BYTES_MAX)


def delimited(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def refusal(content: bytes) -> MagnitudeError:
    found = decode(content)
    assert isinstance(found, Refused)
    return found.error


PART, MESSAGE = delimited(1, b"\xff\xfe"), delimited(1, b"ok")
NOT_UTF8 = [
    ("text", delimited(5, b"a\xffb")),
    ("stopping.stop_strings[1]", delimited(11, delimited(3, b"ok") + delimited(3, b"\xc3"))),
    ("chat.messages[1].content[0].text", delimited(7, delimited(1, b"") + delimited(1, delimited(2, PART)))),
    ("metadata[0].key", delimited(20, delimited(1, b"\xed\xa0\x80"))),
]


@pytest.mark.parametrize(("path", "content"), NOT_UTF8, ids=[path for path, _ in NOT_UTF8])
def test_a_string_that_is_not_utf8_is_named_by_its_path(path: str, content: bytes) -> None:
    error = refusal(content)
    assert error.code == "INVALID_ARGUMENT"
    assert error.details["field"] == path


@pytest.mark.parametrize("content", [b"\xff", b"\x0a\x05a", b"\x0b", b"\x2a" + b"\xff" * 11], ids=repr)
def test_damaged_bytes_are_an_invalid_request(content: bytes) -> None:
    error = refusal(content)
    assert error.code == "INVALID_ARGUMENT"
    assert "magnitude.v1.InferRequest" in error.message


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_become_a_message_or_a_refusal(content: bytes) -> None:
    assert isinstance(decode(content), InferRequest | Refused)


GROUP_KINDS = (3, 4)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_counting_refuses_nothing_that_parses_but_groups(content: bytes) -> None:
    try:
        InferRequest.FromString(content)
    except DecodeError:
        return
    try:
        count_fields(memoryview(content), InferRequest.DESCRIPTOR, FIELDS_MAX)
    except ValueError:
        assert any(byte & 7 in GROUP_KINDS for byte in content)


EMPTY_MESSAGES = delimited(7, b"\x0a\x00" * (15 << 20))
AMPLIFIED = {
    "messages": EMPTY_MESSAGES,
    "metadata": b"\xa2\x01\x00" * (10 << 20),
    "adapters": b"\x6a\x00" * (15 << 20),
    "messages after damage": EMPTY_MESSAGES + b"\x0b",
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_a_message_of_millions_of_fields_is_refused_before_it_is_parsed(name: str) -> None:
    begin = time.perf_counter()
    error = refusal(AMPLIFIED[name])
    assert time.perf_counter() - begin < 1  # 0.05 s here; parsing it takes 4 s and 1.5 GiB
    assert error.code == "INVALID_ARGUMENT"
    assert str(FIELDS_MAX) in error.message


def test_a_list_of_millions_of_numbers_is_refused_before_it_is_parsed() -> None:
    error = refusal(delimited(6, delimited(1, b"\x01" * (30 << 20))))
    assert error.details["field"] == "ids"


def test_the_largest_chat_is_not_refused() -> None:
    message = {"role": "ROLE_USER", "content": [{"text": "hello " * 20}]}
    request = InferRequest(chat={"messages": [message] * 4_096})
    assert decode(request.SerializeToString()) == request


def test_a_message_over_the_limit_gets_a_typed_error_at_the_client(serve: Any) -> None:
    served = serve(message_bytes_max=1 << 16)
    with pytest.raises(Exhausted) as caught:
        served.client_without_retries.infer("x" * 70_000)
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    assert caught.value.details["allowed_bytes"] == "65536"
    assert served.client.infer("x" * 5_000, max_tokens=1).choices


@pytest.mark.parametrize("rpc", ["Infer", "StreamInfer"])
def test_bytes_that_are_no_message_get_a_typed_error_at_the_client(served: Any, rpc: str) -> None:
    content = delimited(5, b"\xff") if rpc == "Infer" else delimited(1, delimited(5, b"\xff"))
    path = f"/magnitude.v1.InferenceService/{rpc}"
    with served.channel() as channel:
        call = channel.unary_unary(path) if rpc == "Infer" else lambda asked: next(channel.unary_stream(path)(asked))
        with pytest.raises(grpc.RpcError) as caught:
            call(content)
    error = call_error(caught.value)
    assert isinstance(error, InvalidRequest)
    assert list(error.field_violations) == ["text" if rpc == "Infer" else "request.text"]
