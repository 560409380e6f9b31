"""HealthService, grpc.health.v1, reflection, models: what a server tells about itself."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as standard_pb2
from grpc_health.v1 import health_pb2_grpc as standard_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from magnitude.errors import CallError, NotFound, Unavailable, Unimplemented
from magnitude.v1 import common_pb2, model_pb2
from magnitude_service.errors import IntegrityError, PreconditionError
from magnitude_service.server.build import SERVICES, Server
from magnitude_service.server.health import MemoryReport
from magnitude_service.server.options import ServerOptions
from magnitude_service.server.served_models import ModelState

Status = standard_pb2.HealthCheckResponse


def test_health_tells_version_uptime_memory_and_each_model(served: Any) -> None:
    health = served.client.health()
    assert health.version == "0.1.0"
    assert 0 <= health.uptime.ToMilliseconds() < 60_000
    assert (health.memory.mapped_bytes, health.memory.limit_bytes) == (2_000, 1 << 30)
    [model] = health.models
    assert (model.name, model.model_id, model.state) == ("tiny", "ab" * 32, common_pb2.MODEL_STATE_READY)
    assert not model.HasField("progress")
    assert model.load.pages_total == 64


def test_health_of_a_loading_model_has_progress_and_of_a_failed_one_its_error(served: Any) -> None:
    served.model.state, served.model.progress = ModelState.LOADING, 0.5
    [model] = served.client.health("tiny").models
    assert (model.state, model.progress) == (common_pb2.MODEL_STATE_LOADING, 0.5)
    served.model.fail(IntegrityError("Cut short.", remedy="Fetch it again.", file="m.gguf"))
    [model] = served.client.health().models
    assert model.state == common_pb2.MODEL_STATE_FAILED
    failure = model.failure
    assert (failure.code, failure.reason, failure.message, failure.remedy) == (
        "DATA_LOSS",
        "INTEGRITY",
        "Cut short.",
        "Fetch it again.",
    )
    assert dict(failure.details) == {"file": "m.gguf"}


def test_health_of_an_unknown_model_is_not_found(served: Any) -> None:
    with pytest.raises(NotFound):
        served.client.health("huge")


def test_health_answers_at_once_while_every_text_worker_is_busy(served: Any) -> None:
    release = threading.Event()
    served.template.render = lambda *arguments, **named: release.wait(30) and []
    streams = [served.client.stream([{"role": "user", "content": "x"}]) for _ in range(4)]
    begin = time.perf_counter()
    for _ in range(20):
        served.client.health()
    assert (time.perf_counter() - begin) / 20 < 0.1
    for stream in streams:
        stream.cancel()
    release.set()


def test_wait_ready_returns_when_the_model_is_ready_and_raises_when_it_failed(served: Any) -> None:
    served.client.wait_ready(5)
    served.model.state = ModelState.LOADING
    with pytest.raises(CallError, match="not ready"):
        served.client.wait_ready(0.1)
    served.model.fail(IntegrityError("Cut short."))
    with pytest.raises(CallError, match="Cut short"):
        served.client.wait_ready(5)


def check(stub: Any, service: str) -> int:
    return int(stub.Check(standard_pb2.HealthCheckRequest(service=service)).status)


def test_standard_health_separates_living_from_serving(served: Any) -> None:
    with served.channel() as channel:
        stub = standard_pb2_grpc.HealthStub(channel)
        assert check(stub, "") == Status.SERVING
        assert {check(stub, service) for service in SERVICES} == {Status.SERVING}
        served.model.drain()
        assert check(stub, "") == Status.SERVING
        assert {check(stub, service) for service in SERVICES} == {Status.NOT_SERVING}
        with pytest.raises(grpc.RpcError) as caught:
            check(stub, "nobody.Service")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_standard_health_can_be_watched(served: Any) -> None:
    with served.channel() as channel:
        stub = standard_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(standard_pb2.HealthCheckRequest(service="magnitude.v1.InferenceService"))
        assert next(watch).status == Status.SERVING
        served.model.drain()
        assert next(watch).status == Status.NOT_SERVING
        watch.cancel()


def test_reflection_lists_every_service_and_describes_it(served: Any) -> None:
    with served.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="magnitude.v1.InferenceService"),
        ]
        listed, described = stub.ServerReflectionInfo(iter(asked))
    names = {service.name for service in listed.list_services_response.service}
    assert names == {*SERVICES, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert described.file_descriptor_response.file_descriptor_proto


def test_models_are_listed_without_and_described_with_their_template(served: Any) -> None:
    [listed] = served.client.list_models()
    model = served.client.model()
    assert (listed.chat_template, model.chat_template) == ("", "{{ messages }}")
    assert model.is_default
    assert (model.name, model.architecture, model.weight_type) == ("tiny", "llama", "Q4_0")
    assert (model.context_tokens, model.trained_context_tokens, model.vocabulary_size) == (8_192, 16_384, 300)
    assert model.kind == model_pb2.MODEL_KIND_GENERATION
    assert model_pb2.CAPABILITY_CHAT in model.capabilities
    assert (model.limits.choices, model.limits.running_requests, model.limits.message_bytes) == (16, 4, 32 << 20)
    assert list(model.end_token_ids) == [256]
    assert not model.HasField("bos_token_id")
    with pytest.raises(NotFound):
        served.client.model("huge")


@pytest.mark.parametrize("rpc", ["LoadModel", "UnloadModel", "ReloadModel"])
def test_loading_and_unloading_are_unimplemented_with_details(served: Any, rpc: str) -> None:
    with pytest.raises(Unimplemented) as caught:
        served.client.call(getattr(served.client.models, rpc), getattr(model_pb2, f"{rpc}Request")())
    assert (caught.value.reason, caught.value.details["rpc"]) == ("NOT_IMPLEMENTED", rpc)


def test_an_unknown_rpc_is_unimplemented_and_makes_no_metric(served: Any) -> None:
    with served.channel() as channel:
        for index in range(20):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/magnitude.v1.InferenceService/Made{index}")(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not [labels for _, labels, _, _ in served.metrics.samples() if "Made" in str(labels)]


def test_calls_are_counted_by_method_and_code(served: Any) -> None:
    served.client.infer("abc")
    with pytest.raises(CallError):
        served.client.infer("abc", temperature=-1)
    found = {(metric.name, labels): value for metric, labels, value, _ in served.metrics.samples()}
    assert found["magnitude_calls_total", ("InferenceService/Infer", "OK")] == 1
    assert found["magnitude_calls_total", ("InferenceService/Infer", "INVALID_ARGUMENT")] == 1
    assert found["magnitude_request_errors_total", ("InferenceService/Infer", "INVALID_REQUEST")] == 1
    assert found["magnitude_calls_running", ("InferenceService/Infer",)] == 0
    assert found["magnitude_prompt_tokens_total", ("tiny",)] == 3
    assert found["magnitude_finishes_total", ("tiny", "EOS")] == 1


def test_an_address_that_is_taken_is_refused_by_name(served: Any) -> None:
    async def start() -> None:
        options = ServerOptions(port=served.port)
        await Server(options, served.models, served.generations, served.metrics, MemoryReport).start()

    with pytest.raises(PreconditionError, match=str(served.port)):
        served.on_loop(start())


def test_a_client_that_pings_all_the_time_is_disconnected(serve: Any) -> None:
    served = serve(ping_interval_min_seconds=3_600)
    options = [
        ("grpc.keepalive_time_ms", 10),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    served.engine.pause()
    with served.channel(*options) as channel:
        call = channel.unary_stream("/grpc.health.v1.Health/Watch")(
            standard_pb2.HealthCheckRequest(service="").SerializeToString()
        )
        next(call)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert served.client.health().models


def test_stopping_lets_open_streams_finish_ends_watches_and_takes_nothing_new(served: Any) -> None:
    served.engine.pause()
    stream = iter(served.client.stream("hello"))
    next(stream)
    channel = served.channel()
    watch = standard_pb2_grpc.HealthStub(channel).Watch(standard_pb2.HealthCheckRequest(service=SERVICES[0]))
    assert next(watch).status == Status.SERVING
    begin = time.monotonic()
    stopping = asyncio.run_coroutine_threadsafe(served.server.stop(60), served.loop)
    assert [answer.status for answer in watch] == [Status.NOT_SERVING]
    with pytest.raises(Unavailable):
        served.client_without_retries.infer("late")
    served.engine.resume()
    assert "".join(event.delta.text for event in stream) == "hello"
    stopping.result(10)
    assert time.monotonic() - begin < 10
    channel.close()


def test_stopping_ends_what_outlasts_the_grace_period(served: Any) -> None:
    served.engine.pause()
    stream = iter(served.client.stream("hello"))
    next(stream)
    begin = time.monotonic()
    asyncio.run_coroutine_threadsafe(served.server.stop(0), served.loop).result(10)
    assert time.monotonic() - begin < 5
    with pytest.raises(CallError):
        list(stream)
    served.engine.wait_for(lambda: served.engine.idle)
