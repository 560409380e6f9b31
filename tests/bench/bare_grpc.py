"""The least that a call through grpcio costs in Python: a server that has the bytes at hand, and nothing of ours.

    python -m tests.bench.bare_grpc SIZE...

Serves, in a process of its own, as many bytes as a request says: at once, or as a stream of mebibytes. Nothing is
parsed, checked or looked up.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
PIECE_BYTES = 1 << 20


class Handlers(grpc.GenericRpcHandler):
    """Both methods, without serializers."""

    def __init__(self, sizes: list[int]) -> None:
        self._answers = {b"%d" % size: os.urandom(size) for size in sizes}

    def service(self, details: Any) -> Any:
        """See grpc."""
        if details.method == "/bare/whole":
            return grpc.unary_unary_rpc_method_handler(self._whole)
        return grpc.unary_stream_rpc_method_handler(self._pieces)

    async def _whole(self, request: bytes, context: Any) -> bytes:
        return self._answers[request]

    async def _pieces(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        answer = self._answers[request]
        for begin in range(0, len(answer), PIECE_BYTES):
            yield answer[begin : begin + PIECE_BYTES]


async def serve(sizes: list[int]) -> None:
    """Until it is ended."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Handlers(sizes),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


@contextmanager
def bare_server(sizes: list[int], streamed_above: int) -> Iterator[Callable[[int], object]]:
    """Yields a call that takes so many bytes; those above a size come as a stream, and are kept until all are there."""
    command = [sys.executable, "-m", "tests.bench.bare_grpc", *map(str, sizes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        with grpc.insecure_channel(address, OPTIONS) as channel:
            whole, pieces = channel.unary_unary("/bare/whole"), channel.unary_stream("/bare/pieces")

            def call(size: int) -> object:
                return whole(b"%d" % size) if size <= streamed_above else list(pieces(b"%d" % size))

            try:
                yield call
            finally:
                process.terminate()


if __name__ == "__main__":
    asyncio.run(serve(list(map(int, sys.argv[1:]))))
