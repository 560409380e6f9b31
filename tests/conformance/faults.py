"""A server before the server, which disturbs calls: what a client does then is seen from the calls that it makes.

It passes on whatever it does not disturb, byte for byte, and always lets GetLoad through.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from magnitude_service.errors import UnavailableError
from magnitude_service.server.status import PUSHBACK_KEY, STATUS_KEY, to_status

REFUSAL = UnavailableError("Not now.", reason="MODEL_NOT_READY", retry_after_seconds=0.02)


class Disturbance(grpc.GenericRpcHandler):
    """Handles every call of every method. `calls` counts those of each."""

    def __init__(self, address: str) -> None:
        self.calls: Counter[str] = Counter()
        self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = details.method
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._answer(path, requests, context))

    def _answer(self, path: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        method = path.rsplit("/", 1)[-1]
        call = lambda: self._channel.stream_stream(path)(requests)  # noqa: E731
        if method != "GetLoad":
            self.calls[method] += 1
            self.disturb(self.calls[method], call, context)
        answers = call()
        context.add_callback(answers.cancel)
        try:
            yield from answers
        except grpc.RpcError as error:
            failed: Any = error
            context.set_trailing_metadata([(key, value) for key, value in failed.trailing_metadata() or ()])
            context.abort(failed.code(), failed.details())

    def disturb(self, number: int, call: Any, context: Any) -> None:
        """Ends the method's call of this number, or lets it through."""
        raise NotImplementedError


class Refusing(Disturbance):
    """Refuses two of three calls of a method as the server refuses what it cannot do yet: it then has done nothing."""

    def disturb(self, number: int, call: Any, context: Any) -> None:
        if number % 3:
            status = to_status(REFUSAL)
            context.set_trailing_metadata([(STATUS_KEY, status.SerializeToString()), (PUSHBACK_KEY, "20")])
            context.abort(grpc.StatusCode.UNAVAILABLE, status.message)


class Losing(Disturbance):
    """Loses the answer to one of two calls of a method, as a broken connection does: the server has done it."""

    def disturb(self, number: int, call: Any, context: Any) -> None:
        if number % 2:
            for _ in call():
                continue
            context.abort(grpc.StatusCode.UNAVAILABLE, "The connection broke.")


@contextlib.contextmanager
def serving(disturbance: Disturbance) -> Iterator[str]:
    """Its address, for as long as it serves."""
    options = [("grpc.max_receive_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[disturbance], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
