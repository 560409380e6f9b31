"""The composition root where no process is needed: what ends `serve` before a model is there."""

from __future__ import annotations

import asyncio
import concurrent.futures

import grpc
import pytest

from magnitude_service import config
from magnitude_service.app import Application, LoadedModel, Phases
from magnitude_service.errors import IntegrityError

Loading = concurrent.futures.Future[LoadedModel]


def application() -> Application:
    return Application(config.load({"model": "m.gguf", "port": 0}, environment={}), Phases())


def test_stopping_while_the_model_loads_ends_the_server_at_once() -> None:
    async def run() -> None:
        found, loading = application(), Loading()
        serving = asyncio.create_task(found.serve(loading, lambda line: pytest.fail(line)))
        while not found.port:
            await asyncio.sleep(0)
        found.stop()
        await asyncio.wait_for(serving, 10)
        assert not loading.done()

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_closes_the_port_and_is_raised() -> None:
    async def run() -> None:
        found, loading = application(), Loading()
        loading.set_exception(IntegrityError("damaged"))
        with pytest.raises(IntegrityError, match="damaged"):
            await asyncio.wait_for(found.serve(loading, lambda line: pytest.fail(line)), 10)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{found.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")

    asyncio.run(run())
