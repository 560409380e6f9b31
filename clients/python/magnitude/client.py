"""A thin client: one object per server, plain arguments in, the contract's messages out.

    with magnitude.Client("127.0.0.1:50051") as client:
        for text in client.stream("Once upon a time", max_tokens=64).texts():
            print(text, end="", flush=True)

Calls are made again as `magnitude.retries` says. For asyncio use the stubs of `magnitude.v1` with `grpc.aio`,
`magnitude.retries.SERVICE_CONFIG` and `magnitude.errors.call_error`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc

from magnitude.errors import CallError, DeadlineExceeded, Unavailable, call_error
from magnitude.retries import ATTEMPTS_MAX, SERVICE_CONFIG, attempts_max, delay_seconds
from magnitude.session import Session
from magnitude.sessions import Sessions
from magnitude.stream import Deadline, Stream
from magnitude.v1 import (
    common_pb2,
    health_pb2,
    health_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    snapshot_pb2,
    snapshot_pb2_grpc,
)

READY_POLL_SECONDS = 0.05

Message = Mapping[str, Any] | common_pb2.ChatMessage
Prompt = str | Sequence[int] | Sequence[Message]

ROLES = {
    "system": common_pb2.ROLE_SYSTEM,
    "user": common_pb2.ROLE_USER,
    "assistant": common_pb2.ROLE_ASSISTANT,
    "tool": common_pb2.ROLE_TOOL,
    "developer": common_pb2.ROLE_DEVELOPER,
}


class Client:
    """A connection to one server, or to all that a name stands for, which then take turns. Threads may share it.
    `close` it, or use it in a `with`."""

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        timeout_seconds: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        retries: bool = True,
    ) -> None:
        """`address` is "host:port", "ipv4:10.0.0.1:50051,10.0.0.2:50051", "dns:///name:port", or any other name that
        gRPC resolves. `timeout_seconds` bounds each call unless the call has its own; absent: no bound. `credentials`
        encrypt: `grpc.ssl_channel_credentials()`; a bearer `token` needs them. Without `retries` a refusal that would
        pass is raised at once, with how long to wait."""
        if token is not None:
            if credentials is None:
                raise ValueError("A token needs credentials of TLS: it would be sent in the clear.")
            bearer = grpc.access_token_call_credentials(token)
            credentials = grpc.composite_channel_credentials(credentials, bearer)
        self._retries = retries
        self._channel = channel(address, credentials, retries=retries)
        self._once = channel(address, credentials, retries=False) if retries else self._channel
        self._timeout_seconds = timeout_seconds
        self.inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self.models = model_pb2_grpc.ModelServiceStub(self._channel)
        self.health_service = health_pb2_grpc.HealthServiceStub(self._channel)
        self.snapshots = snapshot_pb2_grpc.SnapshotServiceStub(self._channel)
        self._inference_once = inference_pb2_grpc.InferenceServiceStub(self._once)
        self.export_state_bytes = self._channel.unary_stream(
            "/magnitude.v1.SnapshotService/ExportState", snapshot_pb2.ExportStateRequest.SerializeToString
        )
        """ExportState whose answers are not parsed: what is large in them is not copied then."""
        self.sessions = Sessions(self)

    def infer(
        self, prompt: Prompt | None, *, timeout_seconds: float | None = None, **options: Any
    ) -> inference_pb2.InferResponse:
        """The whole answer. `options` are those of `infer_request`."""
        request = infer_request(prompt, **options)
        response: inference_pb2.InferResponse
        if request.session_id:
            attempts = attempts_max(request)
            response = self.change(
                self._inference_once.Infer, lambda: request, timeout_seconds=timeout_seconds, attempts=attempts
            )
        else:
            response = self.call(self.inference.Infer, request, timeout_seconds=timeout_seconds)
        return response

    def stream(
        self,
        prompt: Prompt | None,
        *,
        timeout_seconds: float | None = None,
        delta_interval_ms: int | None = None,
        **options: Any,
    ) -> Stream:
        """The answer as it comes."""
        request = inference_pb2.StreamInferRequest(
            request=infer_request(prompt, **options), delta_interval_ms=delta_interval_ms
        )
        in_session = bool(request.request.session_id)
        stub = self._inference_once if in_session else self.inference
        return Stream(
            lambda seconds: stub.StreamInfer(request, timeout=seconds),
            timeout_seconds or self._timeout_seconds,
            attempts=attempts_max(request.request) if in_session and self._retries else 1,
        )

    def session(self, session_id: str, model: str = "") -> Session:
        """A session by its id, to ask in and to save."""
        return Session(self, session_id, model)

    def conversation(self, messages: Sequence[Message] = (), **options: Any) -> Conversation:
        """A chat that begins with some messages, often one of the system's; `options` are those of every answer."""
        return Conversation(self, messages, **options)

    def abort(self, *request_ids: str) -> list[str]:
        """Ends requests early, with what they have; returns those that were running."""
        response = self.call(self.inference.Abort, inference_pb2.AbortRequest(request_ids=request_ids))
        return list(response.aborted_request_ids)

    def tokenize(self, prompt: str | Sequence[Message], *, model: str = "", **options: bool) -> list[int]:
        """The ids of a text or a chat. `options` are those of TokenizationOptions."""
        tokenization = inference_pb2.TokenizeRequest(tokenization=options).tokenization if options else None
        given = {"text": prompt} if isinstance(prompt, str) else {"chat": chat_input(prompt)}
        request = inference_pb2.TokenizeRequest(model=model, tokenization=tokenization, **given)
        return list(self.call(self.inference.Tokenize, request).token_ids)

    def detokenize(self, token_ids: Iterable[int], *, model: str = "", skip_special: bool = False) -> str:
        """The text of ids."""
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids, skip_special=skip_special)
        return str(self.call(self.inference.Detokenize, request).text)

    def load(self, model: str = "") -> common_pb2.Load:
        """How busy a model is."""
        found: common_pb2.Load = self.call(self.inference.GetLoad, inference_pb2.GetLoadRequest(model=model)).load
        return found

    def list_models(self) -> list[model_pb2.Model]:
        """All models, the default one first."""
        return list(self.call(self.models.ListModels, model_pb2.ListModelsRequest()).models)

    def model(self, name: str = "") -> model_pb2.Model:
        """One model; "" is the default one."""
        found: model_pb2.Model = self.call(self.models.GetModel, model_pb2.GetModelRequest(model=name)).model
        return found

    def health(self, model: str = "") -> health_pb2.HealthResponse:
        """How the server is."""
        response: health_pb2.HealthResponse = self.call(
            self.health_service.Health, health_pb2.HealthRequest(model=model)
        )
        return response

    def wait_ready(self, timeout_seconds: float, model: str = "") -> None:
        """Waits until the model (or the first one) is READY. Raises Unavailable when the time is over, CallError when
        the model is FAILED."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                request = health_pb2.HealthRequest(model=model)
                left = max(deadline - time.monotonic(), READY_POLL_SECONDS)
                health = self.call(self.health_service.Health, request, timeout_seconds=left)
            except (Unavailable, DeadlineExceeded):
                health = health_pb2.HealthResponse()
            if health.models and health.models[0].state == common_pb2.MODEL_STATE_READY:
                return
            if health.models and health.models[0].state == common_pb2.MODEL_STATE_FAILED:
                failure = health.models[0].failure
                code = grpc.StatusCode[failure.code]
                raise CallError.by_code.get(code, CallError)(code, failure.message, failure.reason, failure.details)
            if time.monotonic() > deadline:
                raise Unavailable(grpc.StatusCode.UNAVAILABLE, f"The model is not ready after {timeout_seconds:g} s.")
            time.sleep(READY_POLL_SECONDS)

    def call(self, method: Any, request: Any, *, timeout_seconds: float | None = None) -> Any:
        """One unary call of any stub of this client. Raises CallError."""
        try:
            return method(request, timeout=timeout_seconds or self._timeout_seconds)
        except grpc.RpcError as error:
            raise call_error(error) from error

    def change(
        self,
        method: Any,
        request: Callable[[], Any],
        *,
        timeout_seconds: float | None = None,
        attempts: int = ATTEMPTS_MAX,
    ) -> Any:
        """One call that changes something, of what `request` makes anew for each attempt: made again only where the
        server refused it for now. Raises CallError."""
        deadline = Deadline(timeout_seconds or self._timeout_seconds)
        for attempts_left in reversed(range(attempts if self._retries else 1)):
            try:
                return self.call(method, request(), timeout_seconds=deadline.left())
            except CallError as error:
                delay = delay_seconds(error, attempts_left, deadline.left())
                if delay is None:
                    raise
            time.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Closes the connection; open calls are cancelled."""
        self._channel.close()
        self._once.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Conversation:
    """A chat whose messages are kept here and sent with each question; what the server has computed of them already it
    does not compute again. `messages` are what was said so far."""

    def __init__(self, client: Client, messages: Sequence[Message] = (), **options: Any) -> None:
        self._client = client
        self._options = options
        self.messages: list[Message] = list(messages)

    def say(self, text: str) -> str:
        """Asks something and returns the answer."""
        return "".join(self.stream(text))

    def stream(self, text: str) -> Iterator[str]:
        """Asks something; the answer comes in parts. Question and answer become messages when it is complete: one that
        fails, or is left early, was not said."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": text}]
        answer = ""
        with self._client.stream(asked, **self._options) as stream:
            for part in stream.texts():
                answer += part
                yield part
        self.messages = [*asked, {"role": "assistant", "content": answer}]


def channel(address: str, credentials: grpc.ChannelCredentials | None, *, retries: bool) -> grpc.Channel:
    """A connection, which is made when it is first used."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.enable_retries", int(retries)),
    ]
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def infer_request(prompt: Prompt | None, **options: Any) -> inference_pb2.InferRequest:
    """A request. `prompt` is text, token ids, or chat messages ({"role": "user", "content": "…"}); none where the last
    answer of a session goes on.

    `options` are fields of InferRequest; those of its `sampling`, `stopping` and `tokenization` may be named directly:
    `temperature=0, max_tokens=64`. Raises TypeError for a name that none of them has.
    """
    request = inference_pb2.InferRequest()
    if prompt is None:
        pass
    elif isinstance(prompt, str):
        request.text = prompt
    elif prompt and isinstance(prompt[0], int):
        request.token_ids.ids.extend(prompt)  # type: ignore[arg-type]
    else:
        request.chat.CopyFrom(chat_input(prompt))  # type: ignore[arg-type]
    for name, value in options.items():
        if value is not None:
            set_option(request, name, value)
    return request


def set_option(request: inference_pb2.InferRequest, name: str, value: Any) -> None:
    """Sets a field by its name, in the request or in one of its parts."""
    if name in inference_pb2.InferRequest.DESCRIPTOR.fields_by_name:
        request.MergeFrom(inference_pb2.InferRequest(**{name: value}))
        return
    for part in ("sampling", "stopping", "tokenization"):
        inner = getattr(request, part)
        if name in inner.DESCRIPTOR.fields_by_name:
            inner.MergeFrom(type(inner)(**{name: value}))
            return
    raise TypeError(f"There is no option {name!r}; see InferRequest in magnitude.v1.inference_pb2.")


def chat_input(messages: Sequence[Message]) -> common_pb2.ChatInput:
    """A chat of messages, each a ChatMessage or {"role": …, "content": text or list of texts, …}."""
    return common_pb2.ChatInput(messages=[chat_message(message) for message in messages])


def chat_message(message: Message) -> common_pb2.ChatMessage:
    """One message."""
    if isinstance(message, common_pb2.ChatMessage):
        return message
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    content = message.get("content") or ()
    parts = [content] if isinstance(content, str) else list(content)
    if message["role"] not in ROLES:
        raise ValueError(f"The role is {message['role']!r}; it must be one of {', '.join(ROLES)}.")
    return common_pb2.ChatMessage(
        role=ROLES[message["role"]], content=[common_pb2.ContentPart(text=text) for text in parts], **rest
    )
