"""A server that lets in whom it should, as its operator starts it and as the command line reaches it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2 as standard_pb2
from grpc_health.v1 import health_pb2_grpc as standard_pb2_grpc

from magnitude.client import Client
from magnitude.errors import InvalidRequest, PermissionDenied, Unauthenticated
from magnitude.tls import tls_credentials
from tests.support.certificates import Authority, Pair
from tests.support.serving import Served, eventually, magnitude, serving

TOKEN = "token-of-a-caller-7788"
CANARY = "xylophone-9431"


@dataclass(frozen=True)
class Guarded:
    """A server with mutual TLS and tokens, and what a caller needs for it."""

    served: Served
    authority: Authority
    caller: Pair
    token_file: Path
    health_port: int

    @property
    def address(self) -> str:
        return self.served.address.replace("127.0.0.1", "localhost")

    @property
    def flags(self) -> list[str]:
        files = (self.authority.file, self.caller.certificate, self.caller.key)
        names = ("--ca-file", "--client-certificate", "--client-key")
        return ["--address", self.address, *(str(each) for pair in zip(names, files, strict=True) for each in pair)]

    def client(self, token: str | None) -> Client:
        credentials = tls_credentials(self.authority.file, self.caller.certificate, self.caller.key)
        return Client(self.address, credentials=credentials, token=token, timeout_seconds=30, retries=False)


@pytest.fixture(scope="module")
def guarded(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    server, caller = authority.issue("server"), authority.issue("caller")
    (folder / "tokens").write_text(f"{TOKEN}\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        health_port = int(probe.getsockname()[1])
    settings = {
        **{"tls-certificate": server.certificate, "tls-key": server.key, "tls-client-ca": authority.file},
        **{"token-file": folder / "tokens", "health-port": health_port, "log-format": "json"},
    }
    flags = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    with serving(tiny_path, *flags) as served:
        yield Guarded(served, authority, caller, folder / "tokens", health_port)


def test_the_command_line_is_answered_with_certificate_and_token(guarded: Guarded) -> None:
    done = magnitude("infer", *guarded.flags, "--client-token-file", guarded.token_file, "--max-tokens", "3", "hi")
    assert done.returncode == 0, done.stderr
    assert "answer 3 tokens" in done.stderr
    health = magnitude("health", *guarded.flags, MAGNITUDE_CLIENT_TOKEN_FILE=str(guarded.token_file))
    assert health.returncode == 0, health.stderr
    assert "READY" in health.stdout


def test_the_command_line_without_a_token_or_with_another_ends_as_sysexits_say(
    guarded: Guarded, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("wrong-token\n")
    for more, reason in (((), "no bearer token"), (("--client-token-file", tmp_path / "wrong"), "is not one of")):
        done = magnitude("infer", *guarded.flags, *more, "hi")
        assert (done.returncode, reason in done.stderr) == (77, True), done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--client-token-file", "tokens"), "TLS"),
        (("--tls", "--client-token-file", "none"), "none cannot be read: No such file"),
        (("--tls", "--client-token-file", "empty"), "first line of empty is no token"),
        (("--tls", "--client-token-file", "/dev/zero"), "first line of /dev/zero is no token"),
        (("--client-certificate", "tokens"), "certificate goes with its key"),
        (("--ca-file", "none"), "none cannot be read"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "empty").write_text("")
    monkeypatch.chdir(tmp_path)
    done = magnitude("infer", *flags, "hi")
    assert (done.returncode, words in done.stderr) == (78, True), done.stderr
    assert TOKEN not in done.stderr


def test_probes_are_answered_on_the_health_port_without_certificate_or_token(guarded: Guarded) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{guarded.health_port}") as channel:
        stub = standard_pb2_grpc.HealthStub(channel)
        for service in ("", "magnitude.v1.InferenceService"):
            answer = stub.Check(standard_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == standard_pb2.HealthCheckResponse.SERVING
    done = magnitude("health", "--probe", "--address", f"127.0.0.1:{guarded.health_port}")
    assert (done.returncode, done.stdout) == (0, "SERVING\n"), done.stderr


def test_the_health_port_answers_nothing_else(guarded: Guarded) -> None:
    address = f"127.0.0.1:{guarded.health_port}"
    for command in (("health",), ("infer", "hi")):
        done = magnitude(command[0], "--address", address, *command[1:])
        assert (done.returncode, done.stdout) == (69, ""), done.stderr


def test_the_log_has_every_refusal_and_no_token_and_no_prompt(guarded: Guarded) -> None:
    with guarded.client(TOKEN) as client:
        client.infer(CANARY, max_tokens=2, stop_strings=[CANARY], metadata={"a": CANARY})
        client.infer([{"role": "user", "content": CANARY}], max_tokens=2)
        with pytest.raises(InvalidRequest):
            client.infer(CANARY, temperature=-1)
    with guarded.client(None) as client, pytest.raises(Unauthenticated):
        client.infer(CANARY)
    with guarded.client(CANARY) as client, pytest.raises(PermissionDenied):
        client.infer(CANARY)

    def reasons() -> set[str]:
        lines = guarded.served.logged().splitlines(keepends=True)
        return {json.loads(line).get("reason", "") for line in lines if line.endswith("\n")}

    eventually(lambda: reasons() >= {"TOKEN_MISSING", "TOKEN_UNKNOWN", "INVALID_REQUEST"})
    log = guarded.served.logged()
    assert CANARY not in log
    assert TOKEN not in log


def test_a_model_in_this_process_needs_no_certificate_whatever_is_set_for_servers(
    guarded: Guarded, tiny_path: Path
) -> None:
    files = {"MAGNITUDE_TLS_CERTIFICATE": guarded.caller.certificate, "MAGNITUDE_TLS_KEY": guarded.caller.key}
    variables = {name: str(path) for name, path in files.items()} | {"MAGNITUDE_TOKEN_FILE": str(guarded.token_file)}
    done = magnitude("infer", "--model", tiny_path, "--max-tokens", "2", "--raw", "hi", **variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tls-key", "k.pem"), "tls_certificate and tls_key are given one without the other"),
        (("--tls-certificate", "c.pem", "--tls-key", "k.pem"), "tls_certificate c.pem cannot be read"),
        (("--token-file", "none"), "token_file none cannot be read"),
    ],
)
def test_a_server_that_could_let_nobody_in_is_not_started(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = magnitude("serve", "--model", tiny_path, "--port", "0", *flags)
    assert (done.returncode, words in done.stderr) == (78, True), done.stderr
