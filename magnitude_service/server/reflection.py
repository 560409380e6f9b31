"""Server reflection, made at the first question: its import takes 15 ms that starting need not spend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc

PREFIX = "/grpc.reflection."


class LazyReflection(grpc.GenericRpcHandler):
    """Answers for the reflection service once somebody asks."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)
        self._handlers: list[grpc.GenericRpcHandler] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a reflection rpc; None for every other."""
        if not str(handler_call_details.method).startswith(PREFIX):
            return None
        if not self._handlers:
            self._load()
        found = (handler.service(handler_call_details) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Takes what the reflection package would give to a server."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """The same handlers once more, by name; not needed."""

    def _load(self) -> None:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

        servicer = reflection.aio.ReflectionServicer((*self._services, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self)  # type: ignore[no-untyped-call]
