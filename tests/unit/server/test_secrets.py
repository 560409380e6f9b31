"""What callers write, and what they show to be let in, is in no line of the log, however much is logged."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from magnitude.errors import CallError
from magnitude.v1 import inference_pb2
from magnitude_service.server.request_log import formatter

CANARY = "xylophone-9431"
TOKEN = "token-of-a-caller-7788"
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)


class Lines(logging.Handler):
    """Everything that anybody logs, as it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [formatter(name).format(record) for name in ("text", "json")]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    root, handler = logging.getLogger(), Lines()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.setLevel(before)
    root.removeHandler(handler)


@pytest.fixture
def guarded(serve: Any, tmp_path: Path, lines: list[str]) -> Any:
    (tmp_path / "tokens").write_text(TOKEN)
    return serve(token_file=str(tmp_path / "tokens"))


def call(served: Any, request: inference_pb2.InferRequest, metadata: Any = AUTHORIZED) -> None:
    with contextlib.suppress(grpc.RpcError):
        served.client_without_retries.inference.Infer(request, metadata=metadata)


def requests() -> Iterator[inference_pb2.InferRequest]:
    """The canary wherever a request has a place for it, in good requests and bad ones."""
    yield inference_pb2.InferRequest(text=CANARY)
    yield inference_pb2.InferRequest(text="abc", model=CANARY)
    yield inference_pb2.InferRequest(text="abc", expected_model_id=CANARY)
    yield inference_pb2.InferRequest(text=CANARY, metadata={CANARY: CANARY})
    yield inference_pb2.InferRequest(text=CANARY * 10_000)
    bad = inference_pb2.InferRequest(text=CANARY)
    bad.sampling.temperature = -1
    yield bad
    stops = inference_pb2.InferRequest(text="abc")
    stops.stopping.stop_strings.extend([CANARY, ""])
    yield stops
    for role in (2, 9):
        chat = inference_pb2.InferRequest()
        message = chat.chat.messages.add(role=role, name=CANARY)  # type: ignore[arg-type]
        message.content.add(text=CANARY)
        message.tool_calls.add(id=CANARY, name=CANARY, arguments_json=CANARY)
        yield chat


def test_no_line_has_a_prompt_or_a_token(guarded: Any, lines: list[str]) -> None:
    for request in requests():
        call(guarded, request)
    for metadata in ((), (("authorization", f"Bearer {CANARY}"),), (("authorization", f"Basic {TOKEN}"),)):
        call(guarded, inference_pb2.InferRequest(text=CANARY), metadata)
    assert sum("method=Infer" in line for line in lines) >= 10, "calls are logged at all"
    assert not [line for line in lines if CANARY in line or TOKEN in line]


@pytest.mark.parametrize("part", ["tokenizer", "template"])
def test_a_mistake_of_ours_that_quotes_a_prompt_is_logged_without_it(guarded: Any, lines: list[str], part: str) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise ValueError(f"cannot work on {arguments} {named}")

    guarded.tokenizer.encode = guarded.tokenizer.encode_segments = guarded.template.render = fail
    request = inference_pb2.InferRequest(text=CANARY)
    if part == "template":
        request.chat.messages.add(role=2).content.add(text=CANARY)  # type: ignore[arg-type]
    call(guarded, request)
    assert any("internal error" in line and "ValueError" in line for line in lines)
    assert not [line for line in lines if CANARY in line or TOKEN in line]


def test_a_stream_that_is_left_logs_nothing_of_what_it_said(guarded: Any, lines: list[str]) -> None:
    request = inference_pb2.StreamInferRequest(request=inference_pb2.InferRequest(text=CANARY))
    stream = guarded.client.inference.StreamInfer(request, metadata=AUTHORIZED)
    next(stream)
    stream.cancel()
    guarded.engine.wait_for(lambda: guarded.engine.idle)
    with pytest.raises(CallError, match="UNAUTHENTICATED"):
        guarded.client_without_retries.health()
    assert not [line for line in lines if CANARY in line or TOKEN in line]
