"""Around every rpc of ours: decode, log, count, and turn whatever is raised into a status with details."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from magnitude_service import metrics
from magnitude_service.errors import MagnitudeError
from magnitude_service.server.request_log import CALL, CallRecord
from magnitude_service.server.status import abort, internal_error
from magnitude_service.server.tokens import Tokens
from magnitude_service.server.wire import Refused, deserializer, serializer

OURS = "/magnitude.v1."
QUIET = frozenset({"HealthService/Health", "InferenceService/GetLoad"})
"""Probes: logged only at DEBUG."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of our services; those of health and reflection pass as they are. `tokens`, where there are
    any, are asked about every call, before a byte of its message is read."""

    def __init__(self, metrics_: metrics.Metrics, message_bytes_max: int, tokens: Tokens | None = None) -> None:
        self._metrics = metrics_
        self._message_bytes_max = message_bytes_max
        self._tokens = tokens
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler that grpc calls."""
        path = str(handler_call_details.method)
        handler = self._wrapped.get(path) or await continuation(handler_call_details)
        if handler is None:
            return None
        if self._tokens is not None:
            try:
                self._tokens.check(path, handler_call_details.invocation_metadata)
            except MagnitudeError as error:
                return self._refusal(error, path)
        if path.startswith(OURS) and path not in self._wrapped:
            handler = self._wrapped[path] = self._wrap(handler, path)  # only paths that exist: clients cannot fill it
        return handler

    def _refusal(self, error: MagnitudeError, path: str) -> Handler:
        """Ends a call of any shape. It is counted under its name where it is one of ours, and else as reflection."""

        async def answer() -> None:
            raise error

        async def refuse(_: object, context: Context) -> None:
            await self._guard(answer(), context, path.removeprefix(OURS) if path.startswith(OURS) else "Reflection")

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, handler: Any, path: str) -> Handler:
        method = path.removeprefix(OURS)
        decode = deserializer(request_class(path), self._message_bytes_max)
        encode = serializer(handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary, method), decode, encode)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream, method), decode, encode)
        return grpc.stream_unary_rpc_method_handler(self._unary(handler.stream_unary, method), decode, encode)

    def _unary(self, serve: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def unary(request: object, context: Context) -> Any:
            async def answer() -> Any:
                return await serve(checked(request), context)

            return await self._guard(answer(), context, method)

        return unary

    def _stream(self, serve: Callable[..., AsyncIterator[Message]], method: str) -> Callable[..., Any]:
        async def stream(request: object, context: Context) -> None:
            async def answer() -> None:
                # A reader that stops reading holds us in `write`; one that goes away cancels this task. `aclosing`
                # ends the servicer's generator in both cases, so that its request is aborted at once.
                async with aclosing(serve(checked(request), context)) as events:  # type: ignore[type-var]
                    async for event in events:
                        try:
                            await context.write(event)
                        except grpc.aio.InternalError as error:  # the connection broke before we were cancelled
                            raise asyncio.CancelledError from error

            await self._guard(answer(), context, method)

        return stream

    async def _guard(self, answer: Awaitable[Any], context: Context, method: str) -> Any:
        """Awaits the answer; whatever it raises ends the call with a status, and is counted and logged."""
        record = CallRecord(method.rsplit("/", 1)[-1])
        CALL.set(record)
        self._metrics.add(metrics.CALLS_RUNNING, 1, method)
        try:
            result = await answer
        except asyncio.CancelledError:
            self._end(record, method, "DEADLINE_EXCEEDED" if is_late(context) else "CANCELLED")
            raise
        except MagnitudeError as error:
            self._end(record, method, error.code, error.reason)
            await abort(context, error)
        except Exception as error:
            failure = internal_error(error)
            self._end(record, method, failure.code, failure.reason, failure.details["error_id"])
            await abort(context, failure)
        self._end(record, method, "OK")
        return result

    def _end(self, record: CallRecord, method: str, code: str, reason: str = "", error_id: str = "") -> None:
        """Counts and logs a call, before its caller can know that it is over."""
        self._metrics.add(metrics.CALLS_RUNNING, -1, method)
        self._metrics.add(metrics.CALLS, 1, method, code)
        if code != "OK":
            self._metrics.add(metrics.ERRORS, 1, method, reason or code)
        self._metrics.observe(metrics.CALL_SECONDS, time.monotonic() - record.begin_seconds, method)
        record.write(code, error_id or reason, logging.DEBUG if method in QUIET else logging.INFO)


def checked(request: object) -> object:
    """The request, or the error of bytes that could not become one. A client's stream is checked message by message."""
    if isinstance(request, Refused):
        raise request.error
    if hasattr(request, "__aiter__"):
        return checked_messages(request)
    return request


async def checked_messages(requests: Any) -> AsyncIterator[object]:
    """The same for each message of a stream."""
    async for request in requests:
        yield checked(request)


def is_late(context: Context) -> bool:
    """Whether the call's deadline has passed."""
    remaining = context.time_remaining()
    return remaining is not None and remaining <= 0


def request_class(path: str) -> type[Message]:
    """The message class that the rpc takes; its generated module is loaded, since the rpc is served."""
    service, method = path[1:].split("/")
    described = descriptor_pool.Default().FindServiceByName(service).FindMethodByName(method)
    found: type[Message] = message_factory.GetMessageClass(described.input_type)
    return found
