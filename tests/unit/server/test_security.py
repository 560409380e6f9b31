"""Who is let in: TLS, mutual TLS, bearer tokens, reflection, the port for probes, and what a connection may take."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as standard_pb2
from grpc_health.v1 import health_pb2_grpc as standard_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from magnitude.client import Client
from magnitude.errors import CallError, Unavailable
from magnitude.tls import tls_credentials
from magnitude.v1 import health_pb2, inference_pb2
from magnitude_service.errors import ConfigurationError, PermissionDeniedError, UnauthenticatedError
from magnitude_service.server import tls, tokens
from magnitude_service.server.build import channel_options
from magnitude_service.server.options import ServerOptions
from magnitude_service.server.tls import Certificates
from magnitude_service.server.tokens import Tokens, parse_tokens
from tests.support.certificates import Authority, Pair

TOKEN = "canary-token-1234567890"
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)
Serving = standard_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"another-token\n{TOKEN}\n")
    return path


@pytest.fixture(autouse=True)
def files_are_looked_at_for_every_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RELOAD_SECONDS", 0.0)
    monkeypatch.setattr(tls, "RELOAD_SECONDS", 0.0)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Connects to a server's port, each time anew."""
    clients: list[Client] = []

    def make(port: int, **arguments: Any) -> Client:
        clients.append(Client(f"localhost:{port}", timeout_seconds=10, retries=False, **arguments))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def tls_of(pair: Pair) -> dict[str, str]:
    return {"tls_certificate": str(pair.certificate), "tls_key": str(pair.key)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# TLS


def test_over_tls_a_caller_that_trusts_the_authority_is_answered(
    serve: Any, authority: Authority, pair: Pair, connect: Any
) -> None:
    served = serve(**tls_of(pair))
    client = connect(served.port, credentials=tls_credentials(authority.file))
    assert client.infer("abc").choices
    assert "".join(client.stream("hello").texts()) == "hello"


def test_plain_text_and_strangers_authorities_are_not_answered_over_tls(
    serve: Any, tmp_path: Path, pair: Pair, connect: Any
) -> None:
    served = serve(**tls_of(pair))
    stranger = Authority(tmp_path, "stranger")
    for credentials in (None, tls_credentials(stranger.file)):
        with pytest.raises(Unavailable):
            connect(served.port, credentials=credentials).infer("abc")
    assert served.engine.idle


def test_a_renewed_certificate_is_shown_without_a_restart(
    serve: Any, tmp_path: Path, authority: Authority, pair: Pair, connect: Any
) -> None:
    served = serve(**tls_of(pair))
    old = connect(served.port, credentials=tls_credentials(authority.file))
    assert old.infer("abc").choices
    successor = Authority(tmp_path, "successor")
    successor.issue("server")  # over the files of the first
    assert connect(served.port, credentials=tls_credentials(successor.file)).infer("abc").choices
    with pytest.raises(Unavailable):
        connect(served.port, credentials=tls_credentials(authority.file)).infer("abc")
    assert old.infer("abc").choices, "an open connection stays"


def test_half_a_renewal_changes_nothing_and_is_logged(
    serve: Any, authority: Authority, pair: Pair, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(**tls_of(pair))
    key = pair.key.read_bytes()
    pair.key.write_bytes(authority.issue("other").key.read_bytes())
    assert connect(served.port, credentials=tls_credentials(authority.file)).infer("abc").choices
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith("the certificates stay as they were: ")
    pair.key.unlink()
    assert connect(served.port, credentials=tls_credentials(authority.file)).infer("abc").choices
    pair.key.write_bytes(key)
    assert connect(served.port, credentials=tls_credentials(authority.file)).infer("abc").choices


def test_over_mutual_tls_only_callers_with_a_certificate_of_the_authority_are_answered(
    serve: Any, tmp_path: Path, authority: Authority, pair: Pair, connect: Any
) -> None:
    served = serve(**tls_of(pair), tls_client_ca=str(authority.file))
    caller = authority.issue("caller")
    trusted = tls_credentials(authority.file, caller.certificate, caller.key)
    assert connect(served.port, credentials=trusted).infer("abc").choices
    foreign = Authority(tmp_path, "stranger").issue("foreign")
    for credentials in (
        tls_credentials(authority.file),
        tls_credentials(authority.file, foreign.certificate, foreign.key),
    ):
        with pytest.raises(Unavailable):
            connect(served.port, credentials=credentials).infer("abc")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pair: pair.key.unlink(), "tls_key .* cannot be read: No such file"),
        (lambda pair: pair.certificate.write_text("nothing"), "are no certificate and its private key"),
        (lambda pair: Authority(pair.key.parent, "x").issue("x").key.rename(pair.key), "are no certificate and its"),
    ],
)
def test_files_that_make_no_server_are_refused_by_name(pair: Pair, spoil: Callable[[Pair], Any], words: str) -> None:
    Certificates(ServerOptions(**tls_of(pair)))
    spoil(pair)
    with pytest.raises(ConfigurationError, match=words):
        Certificates(ServerOptions(**tls_of(pair)))


def test_authorities_of_callers_that_are_none_are_refused_by_name(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(ConfigurationError, match="holds no certificates"):
        Certificates(ServerOptions(**tls_of(pair), tls_client_ca=str(tmp_path / "ca")))


def test_a_file_of_certificates_or_tokens_above_its_limit_is_refused_and_not_cut(
    pair: Pair, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, checked = Certificates(ServerOptions(**tls_of(pair))), Tokens(token_file)
    with pair.certificate.open("a") as file:
        file.write("\n" * tls.PEM_BYTES_MAX)
    with pytest.raises(ConfigurationError, match=r"tls_certificate .* has more than 1,048,576 bytes") as caught:
        Certificates(ServerOptions(**tls_of(pair)))
    assert (caught.value.field, bool(caught.value.remedy)) == ("tls_certificate", True)
    assert served.renewed() is None
    with token_file.open("a") as file:
        file.write("\n" * tokens.FILE_BYTES_MAX + "one-more\n")
    with pytest.raises(ConfigurationError, match=r"token_file .* has more than 4,097,000 bytes"):
        Tokens(token_file)
    checked.check("/x", AUTHORIZED)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


@pytest.mark.parametrize("given", [{"tls_key": "k"}, {"tls_certificate": "c"}, {"tls_client_ca": "a"}])
def test_settings_of_tls_that_lack_another_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="without"):
        ServerOptions(**given)


def test_a_client_certificate_goes_with_its_key(pair: Pair) -> None:
    with pytest.raises(ValueError, match="with its key"):
        tls_credentials(certificate_file=pair.certificate)


# Tokens


def failure(stub: Any, metadata: Any = ()) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        stub(inference_pb2.InferRequest(text="abc"), metadata=metadata)
    return caught.value


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (("authorization", TOKEN),),
        (("authorization", "Bearer "),),
        (("authorization", f"Basic {TOKEN}"),),
        (*AUTHORIZED, *AUTHORIZED),
        (("authorization-bin", f"Bearer {TOKEN}".encode()),),
    ],
)
def test_a_call_without_a_token_is_unauthenticated(serve: Any, token_file: Path, metadata: Any) -> None:
    served = serve(token_file=str(token_file))
    error = failure(served.client_without_retries.inference.Infer, metadata)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert served.engine.idle


@pytest.mark.parametrize(
    "sent", [TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "another-token another-token", "é", "x" * 4_000]
)
def test_a_call_with_another_token_is_denied(serve: Any, token_file: Path, sent: str) -> None:
    served = serve(token_file=str(token_file))
    checked = Tokens(token_file)
    with pytest.raises(PermissionDeniedError, match="not one of"):
        checked.check("/magnitude.v1.InferenceService/Infer", [("authorization", f"Bearer {sent}")])
    if sent.isascii():
        error = failure(served.client_without_retries.inference.Infer, (("authorization", f"Bearer {sent}"),))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert sent not in (error.details() or "")


def test_a_call_with_a_token_is_answered_in_every_shape(serve: Any, token_file: Path) -> None:
    served = serve(token_file=str(token_file))
    client = served.client_without_retries
    for header in ("Bearer", "bearer", "BEARER"):
        metadata = (("authorization", f"{header} {TOKEN}"),)
        assert client.inference.Infer(inference_pb2.InferRequest(text="abc"), metadata=metadata).choices
    request = inference_pb2.StreamInferRequest(request=inference_pb2.InferRequest(text="abc"))
    assert list(client.inference.StreamInfer(request, metadata=AUTHORIZED))[-1].HasField("finished")
    assert client.health_service.Health(health_pb2.HealthRequest(), metadata=AUTHORIZED).models


def test_streams_health_and_reflection_need_the_token_and_the_standard_health_does_not(
    serve: Any, token_file: Path
) -> None:
    served = serve(token_file=str(token_file))
    client = served.client_without_retries
    with pytest.raises(CallError, match="UNAUTHENTICATED"):
        list(client.stream("abc"))
    with pytest.raises(CallError, match="UNAUTHENTICATED"):
        client.health()
    with served.channel() as channel:
        assert standard_pb2_grpc.HealthStub(channel).Check(standard_pb2.HealthCheckRequest()).status == Serving
        listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        asked = reflection_pb2.ServerReflectionRequest(list_services="*")
        with pytest.raises(grpc.RpcError) as caught:
            list(listing(iter([asked])))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        [answer] = listing(iter([asked]), metadata=AUTHORIZED)
        assert answer.list_services_response.service


def test_refused_calls_are_counted_by_reason_and_unknown_rpcs_make_no_series(serve: Any, token_file: Path) -> None:
    served = serve(token_file=str(token_file))
    failure(served.client_without_retries.inference.Infer)
    with served.channel() as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/magnitude.v1.InferenceService/Made")(b"")
    found = {(metric.name, labels): value for metric, labels, value, _ in served.metrics.samples()}
    assert found["magnitude_request_errors_total", ("InferenceService/Infer", "TOKEN_MISSING")] == 1
    assert found["magnitude_calls_running", ("InferenceService/Infer",)] == 0
    assert "Made" not in str(found)


def test_a_megabyte_that_shows_no_token_is_not_decoded(
    serve: Any, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(token_file=str(token_file))
    with served.channel() as channel:
        call = channel.unary_unary("/magnitude.v1.InferenceService/Infer")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff" * (1 << 20))  # decoding it would be INVALID_ARGUMENT
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_that_is_taken_out_of_the_file_is_refused_and_a_new_one_accepted(token_file: Path) -> None:
    checked = Tokens(token_file)
    checked.check("/x", AUTHORIZED)
    token_file.write_text("new-token\n")
    with pytest.raises(PermissionDeniedError):
        checked.check("/x", AUTHORIZED)
    checked.check("/x", [("authorization", "Bearer new-token")])


def test_a_secret_whose_link_is_turned_is_read_again(tmp_path: Path) -> None:
    for name, token in (("one", "token-one"), ("two", "token-two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens").write_text(token)
    (tmp_path / "data").symlink_to("one")
    checked = Tokens(tmp_path / "data" / "tokens")
    (tmp_path / "new").symlink_to("two")
    os.replace(tmp_path / "new", tmp_path / "data")
    checked.check("/x", [("authorization", "Bearer token-two")])


def test_a_file_that_becomes_unusable_leaves_the_tokens_and_is_logged_once(
    token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checked = Tokens(token_file)
    token_file.write_text("\n")
    for _ in range(3):
        checked.check("/x", AUTHORIZED)
    token_file.unlink()
    for _ in range(3):
        checked.check("/x", AUTHORIZED)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2


def test_a_file_that_becomes_a_pipe_holds_up_no_call(token_file: Path) -> None:
    checked = Tokens(token_file)
    token_file.unlink()
    os.mkfifo(token_file)
    checking = threading.Thread(target=checked.check, args=("/x", AUTHORIZED), daemon=True)
    checking.start()
    checking.join(5)
    assert not checking.is_alive()


def test_the_file_is_looked_at_no_more_often_than_it_should(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RELOAD_SECONDS", 3_600.0)
    checked = Tokens(token_file)
    token_file.write_text("new-token\n")
    checked.check("/x", AUTHORIZED)


def test_every_token_is_compared_whichever_matches(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_file.write_text("\n".join([TOKEN, *(f"token-{index}" for index in range(9))]))
    checked = Tokens(token_file)
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(tokens.hmac, "compare_digest", compare)
    checked.check("/x", AUTHORIZED)
    assert len(compared) == 10
    assert {len(side) for sides in compared for side in sides} == {32}
    assert TOKEN.encode() not in repr(vars(checked)).encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"\n \n", b"two words", b"tab\there", b"\xc3\xa9", b"nul\0", b"x" * (tokens.TOKEN_BYTES_MAX + 1)],
)
def test_a_file_without_proper_tokens_is_refused_without_showing_any(data: bytes) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_tokens(data + b"\n", "tokens")
    assert data.strip().decode("latin-1") not in str(caught.value) or not data.strip()


def test_limits_of_the_token_file_are_those_that_are_named() -> None:
    lines = [f"token-{index}" for index in range(tokens.TOKENS_MAX)]
    assert len(parse_tokens("\r\n".join(lines).encode(), "tokens")) == tokens.TOKENS_MAX
    with pytest.raises(ConfigurationError, match=f"has {tokens.TOKENS_MAX + 1} tokens"):
        parse_tokens("\n".join([*lines, "one"]).encode(), "tokens")
    assert parse_tokens(b"x" * tokens.TOKEN_BYTES_MAX, "tokens")


def test_a_missing_token_is_not_a_wrong_one() -> None:
    assert (UnauthenticatedError("").code, UnauthenticatedError("").exit_code) == ("UNAUTHENTICATED", 77)
    assert (PermissionDeniedError("").code, PermissionDeniedError("").exit_code) == ("PERMISSION_DENIED", 77)


def test_tokens_in_the_clear_are_warned_of_where_others_can_listen(
    serve: Any, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(token_file=str(token_file))
    assert "without TLS" not in caplog.text
    serve(token_file=str(token_file), host="0.0.0.0")
    assert "without TLS" in caplog.text


def test_the_client_sends_its_token_over_tls_and_never_in_the_clear(
    serve: Any, authority: Authority, pair: Pair, token_file: Path, connect: Any
) -> None:
    served = serve(**tls_of(pair), token_file=str(token_file))
    credentials = tls_credentials(authority.file)
    assert connect(served.port, credentials=credentials, token=TOKEN).infer("abc").choices
    with pytest.raises(CallError, match="PERMISSION_DENIED"):
        connect(served.port, credentials=credentials, token="wrong").infer("abc")
    with pytest.raises(ValueError, match="TLS"):
        connect(served.port, token=TOKEN)


# Probes, reflection, connections


def test_the_health_port_answers_probes_beside_mutual_tls_and_nothing_else(
    serve: Any, authority: Authority, pair: Pair, token_file: Path
) -> None:
    port = free_port()
    served = serve(**tls_of(pair), tls_client_ca=str(authority.file), token_file=str(token_file), health_port=port)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = standard_pb2_grpc.HealthStub(channel)
        assert stub.Check(standard_pb2.HealthCheckRequest(service="magnitude.v1.InferenceService")).status == Serving
        served.model.drain()
        assert stub.Check(standard_pb2.HealthCheckRequest(service="")).status == Serving
        assert stub.Check(standard_pb2.HealthCheckRequest(service="magnitude.v1.InferenceService")).status != Serving
        for path in ("/magnitude.v1.InferenceService/Infer", "/magnitude.v1.HealthService/Health"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_health_port_that_is_taken_is_refused_by_its_flag(serve: Any, served: Any) -> None:
    with pytest.raises(Exception, match=r"choose another --health-port"):
        serve(health_port=served.port)


def test_reflection_that_is_off_tells_nothing(serve: Any) -> None:
    served = serve(reflection=False)
    asked = reflection_pb2.ServerReflectionRequest(list_services="*")
    with served.channel() as channel:
        listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        with pytest.raises(grpc.RpcError) as caught:
            list(listing(iter([asked])))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_old_connection_takes_no_new_calls_and_lets_its_streams_end(serve: Any) -> None:
    served = serve(connection_age_seconds=0.2, connection_age_grace_seconds=60)
    served.engine.pause()
    with served.channel() as channel:
        ready, left = threading.Event(), threading.Event()

        def hear(state: grpc.ChannelConnectivity) -> None:
            if state is grpc.ChannelConnectivity.READY:
                ready.set()
            elif ready.is_set():
                left.set()

        channel.subscribe(hear)
        request = inference_pb2.StreamInferRequest(request=inference_pb2.InferRequest(text="hello"))
        stream = channel.unary_stream(
            "/magnitude.v1.InferenceService/StreamInfer",
            inference_pb2.StreamInferRequest.SerializeToString,
            inference_pb2.StreamInferResponse.FromString,
        )(request)
        next(stream)
        assert left.wait(10), "the server never said that it is over"
        served.engine.resume()
        assert "".join(event.delta.text for event in stream) == "hello"


def test_a_stream_that_outlasts_the_grace_of_its_connection_is_cut(serve: Any) -> None:
    served = serve(connection_age_seconds=0.2, connection_age_grace_seconds=1)
    served.engine.pause()
    stream = iter(served.client_without_retries.stream("hello"))
    next(stream)
    with pytest.raises(CallError):
        list(stream)
    served.engine.resume()
    served.engine.wait_for(lambda: served.engine.idle)


def test_no_limit_of_age_is_no_option_of_grpc() -> None:
    names = {name for name, _ in channel_options(ServerOptions(connection_age_seconds=0))}
    assert not {name for name in names if "connection_age" in name}
    assert "grpc.max_connection_age_ms" in dict(channel_options(ServerOptions()))


def test_calls_beyond_a_connections_limit_wait_at_the_client_until_one_ends(serve: Any) -> None:
    served = serve(connection_streams_max=2)
    served.engine.pause()
    with served.channel() as channel:
        watch = standard_pb2_grpc.HealthStub(channel).Watch
        held = [watch(standard_pb2.HealthCheckRequest()) for _ in range(2)]
        for stream in held:
            next(stream)
        third = standard_pb2_grpc.HealthStub(channel).Check.future(standard_pb2.HealthCheckRequest())
        with pytest.raises(grpc.FutureTimeoutError):
            third.result(0.5)
        held[0].cancel()
        assert third.result(10).status == Serving
        held[1].cancel()
    assert served.client.health().models, "another connection has its own"
    served.engine.resume()
