"""`magnitude health`: what scripts and container health checks read off its exit status."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2 as standard_pb2
from grpc_health.v1 import health_pb2_grpc as standard_pb2_grpc

from magnitude.v1 import common_pb2, health_pb2, health_pb2_grpc
from tests.support.serving import Served, magnitude


@contextlib.contextmanager
def listening(add: Callable[[grpc.Server], None]) -> Iterator[str]:
    """The address of a server with the services that `add` gives it."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def answering(*models: health_pb2.ModelHealth) -> contextlib.AbstractContextManager[str]:
    """The address of a server that says this about its models, and nothing else."""

    class Servicer(health_pb2_grpc.HealthServiceServicer):
        def Health(self, request: object, context: object) -> health_pb2.HealthResponse:
            return health_pb2.HealthResponse(models=models)

    return listening(functools.partial(health_pb2_grpc.add_HealthServiceServicer_to_server, Servicer()))


def probed(status: int) -> contextlib.AbstractContextManager[str]:
    """The address of a health port whose model has this status; the process itself lives."""

    class Servicer(standard_pb2_grpc.HealthServicer):
        def Check(self, request: standard_pb2.HealthCheckRequest, context: object) -> standard_pb2.HealthCheckResponse:
            lives = standard_pb2.HealthCheckResponse.SERVING
            return standard_pb2.HealthCheckResponse(status=status if request.service else lives)

    return listening(functools.partial(standard_pb2_grpc.add_HealthServicer_to_server, Servicer()))


def test_a_ready_model_is_one_line_and_status_0(server: Served, tiny_model: Path) -> None:
    for flags in ((), ("--live",), ("--model", tiny_model.stem)):
        done = magnitude("health", "--address", server.address, *flags)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{tiny_model.stem}  READY  0 running, 0 waiting  0/")


def test_the_server_is_named_by_a_variable(server: Served) -> None:
    assert magnitude("health", MAGNITUDE_ADDRESS=server.address).returncode == 0


def test_a_model_that_the_server_has_not_is_status_66(server: Served) -> None:
    done = magnitude("health", "--address", server.address, "--model", "other")
    assert (done.returncode, done.stdout) == (66, "")
    assert "other" in done.stderr


def test_nobody_there_is_status_75_within_the_timeout() -> None:
    with socket.socket() as taken:  # bound, and not listening: nobody else can be there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = magnitude("health", "--address", address, "--timeout", "500")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith(f"magnitude: Nobody answers at {address} (")


@pytest.mark.parametrize(
    ("state", "more", "line"),
    [
        ("LOADING", {"progress": 0.25}, "m  LOADING  25%"),
        ("DRAINING", {"load": common_pb2.Load(running_requests=2, pages_total=9)}, "m  DRAINING  2 running, 0 waiting"),
        ("FAILED", {"failure": common_pb2.Failure(message="The disk is gone.")}, "m  FAILED  The disk is gone."),
    ],
)
def test_a_server_that_is_not_ready_is_live_all_the_same(state: str, more: dict[str, object], line: str) -> None:
    model = health_pb2.ModelHealth(name="m", state=f"MODEL_STATE_{state}", **more)
    with answering(model) as address:
        done = magnitude("health", "--address", address)
        assert (done.returncode, state in done.stderr) == (75, True)
        assert done.stdout.startswith(line)
        assert magnitude("health", "--address", address, "--live").returncode == 0


def test_a_server_without_a_model_is_not_ready() -> None:
    with answering() as address:
        done = magnitude("health", "--address", address)
        assert (done.returncode, done.stdout) == (75, "")
        assert "without a model" in done.stderr


def test_a_probe_is_answered_as_kubernetes_is(server: Served) -> None:
    done = magnitude("health", "--probe", "--address", server.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SERVING\n", "")
    with probed(standard_pb2.HealthCheckResponse.NOT_SERVING) as address:
        done = magnitude("health", "--probe", "--address", address)
        assert (done.returncode, done.stdout, "NOT_SERVING" in done.stderr) == (75, "", True)
        assert magnitude("health", "--probe", "--live", "--address", address).returncode == 0


def test_a_probe_knows_of_the_default_model_alone() -> None:
    done = magnitude("health", "--probe", "--model", "m")
    assert (done.returncode, "--probe takes no --model" in done.stderr) == (64, True)
