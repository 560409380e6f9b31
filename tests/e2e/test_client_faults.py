"""Clients that stop reading, stop running, or ping without end: they cost themselves, and nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from magnitude.client import Client, infer_request
from magnitude.errors import Exhausted, call_error
from magnitude.v1 import inference_pb2, inference_pb2_grpc
from tests.support.serving import Served, environment, eventually, is_idle, serving

SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
"""A client whose window stays at 64 KiB, so that a stream that it does not read is soon held up."""

LAZY_READER = f"""
import sys, grpc
from magnitude.client import infer_request
from magnitude.v1 import inference_pb2, inference_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1], {SMALL_WINDOW!r})
request = infer_request("hello", max_tokens=3900, ignore_eos=True)
request.return_options.logprobs = 32
stub = inference_pb2_grpc.InferenceServiceStub(channel)
stream = stub.StreamInfer(inference_pb2.StreamInferRequest(request=request))
next(stream)
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(tiny_path: Path) -> Iterator[Served]:
    """Owes little to slow readers, and asks silent connections soon whether they live."""
    with serving(tiny_path, "--stream-buffer-bytes", "65536", "--keepalive-seconds", "1") as served:
        yield served


def descriptors(served: Served, client: Client) -> int:
    """Open files and sockets of the server, with the connection of `client` among them."""
    client.health()
    return len(os.listdir(f"/proc/{served.process.pid}/fd"))


@contextlib.contextmanager
def lazy_reader(served: Served) -> Iterator[subprocess.Popen[str]]:
    """A process that has a stream and does not read it."""
    command = [sys.executable, "-c", LAZY_READER, served.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "begun\n"
        try:
            yield one
        finally:
            one.kill()


def test_a_reader_that_stops_reading_loses_its_stream_and_frees_its_pages(server: Served, client: Client) -> None:
    request = infer_request("hello", max_tokens=3900, ignore_eos=True)
    request.return_options.logprobs = 32
    with grpc.insecure_channel(server.address, SMALL_WINDOW) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        stream = stub.StreamInfer(inference_pb2.StreamInferRequest(request=request))
        next(stream)
        eventually(lambda: is_idle(client))
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
    error = call_error(caught.value)
    assert isinstance(error, Exhausted)
    assert (error.reason, error.details["allowed_bytes"]) == ("SLOW_READER", "65536")


def test_a_stopped_client_holds_up_nobody(server: Served, client: Client) -> None:
    with lazy_reader(server) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        eventually(lambda: is_idle(client))
        answer = client.infer("hello", max_tokens=30, ignore_eos=True)
        assert answer.usage.completion_tokens == 30
        stopped.send_signal(signal.SIGCONT)


@pytest.mark.heavy
def test_the_connection_of_a_stopped_client_is_closed_by_keepalive(server: Served, client: Client) -> None:
    before = descriptors(server, client)
    with lazy_reader(server) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        eventually(lambda: is_idle(client))
        assert descriptors(server, client) > before
        eventually(lambda: descriptors(server, client) <= before, 40)
        eventually(lambda: "method=StreamInfer code=CANCELLED" in server.logged(), 5)


def test_a_killed_client_frees_its_pages_and_its_connection(server: Served, client: Client) -> None:
    before = descriptors(server, client)
    with lazy_reader(server) as killed:
        killed.kill()
        killed.wait()
        eventually(lambda: is_idle(client), 2)
    eventually(lambda: descriptors(server, client) <= before, 5)


def frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    """An HTTP/2 frame on stream 0."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + bytes(4) + payload


def test_ten_thousand_pings_end_the_connection_of_who_sends_them(server: Served, client: Client) -> None:
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b""))
        received = b""
        with contextlib.suppress(ConnectionError):
            for number in range(10_000):
                connection.sendall(frame(6, struct.pack(">Q", number)))
        with contextlib.suppress(ConnectionError):
            while block := connection.recv(65536):
                received += block
    assert b"too_many_pings" in received
    assert client.infer("hello", max_tokens=3).choices
    assert client.health().models[0].load.running_requests == 0


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 50_000],
    ids=["HTTP/1.1", "zeros", "frames of junk"],
)
def test_junk_on_the_port_ends_its_connection_only(server: Served, client: Client, junk: bytes) -> None:
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(junk)
        with contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass
    assert client.infer("hello", max_tokens=3).choices
