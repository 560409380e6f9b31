"""Which calls are made again: the table of clients/README.md, the contract and the service config agree."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor

from magnitude.client import Client
from magnitude.errors import CallError, Unavailable
from magnitude.retries import ATTEMPTS_MAX, SERVICE_CONFIG, attempts_max, delay_seconds
from magnitude.v1 import health_pb2, inference_pb2, model_pb2, snapshot_pb2

README = Path(__file__).parents[3] / "clients/README.md"
SERVICES: list[ServiceDescriptor] = [
    file.DESCRIPTOR.services_by_name[name]
    for file, name in (
        (inference_pb2, "InferenceService"),
        (model_pb2, "ModelService"),
        (health_pb2, "HealthService"),
        (snapshot_pb2, "SnapshotService"),
    )
]
REFUSED = Unavailable(grpc.StatusCode.UNAVAILABLE, "busy", "SESSION_BUSY", retry_after_seconds=0.01)
LOST = Unavailable(grpc.StatusCode.UNAVAILABLE, "the connection broke")


def table() -> dict[str, set[str]]:
    """When the calls are made again, by method, as the README has it."""
    found = defaultdict(set)
    for service, methods, when in re.findall(r"^\| (\w+Service): ([^|]*?) \| ([^|]*?) \|$", README.read_text(), re.M):
        for method in re.findall(r"\b[A-Z]\w+", methods):
            found[f"{service}.{method}"].add(when)
    return found


def test_every_call_of_the_contract_has_its_row() -> None:
    assert set(table()) == {f"{service.name}.{method.name}" for service in SERVICES for method in service.methods}


def test_grpc_repeats_what_the_table_says() -> None:
    [policy] = json.loads(SERVICE_CONFIG)["methodConfig"]
    repeated = set()
    for name in policy["name"]:
        [service] = [service for service in SERVICES if service.full_name == name["service"]]
        repeated |= {f"{service.name}.{name.get('method', method.name)}" for method in service.methods}
    assert repeated == {method for method, when in table().items() if "whenever it may pass" in when}
    assert policy["retryPolicy"]["maxAttempts"] == ATTEMPTS_MAX


def failing(*errors: CallError) -> tuple[Any, list[float | None]]:
    """A client's call that fails with these errors and then answers; and the timeouts of its attempts."""
    left, timeouts = list(errors), []

    def call(method: Any, request: Any, *, timeout_seconds: float | None) -> str:
        timeouts.append(timeout_seconds)
        if left:
            raise left.pop(0)
        return "answer"

    return call, timeouts


@pytest.fixture
def client() -> Client:
    return Client("127.0.0.1:1")


def test_what_was_refused_for_now_is_asked_for_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    call, timeouts = failing(REFUSED, REFUSED)
    monkeypatch.setattr(client, "call", call)
    assert client.change("Save", lambda: "request", timeout_seconds=5) == "answer"
    assert timeouts == sorted(timeouts, reverse=True), "one timeout for all attempts"
    assert len(set(timeouts)) == 3


@pytest.mark.parametrize("errors", [[LOST], [REFUSED] * ATTEMPTS_MAX, [REFUSED, LOST]])
def test_what_may_have_been_done_or_is_refused_for_good_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch, errors: list[CallError]
) -> None:
    call, timeouts = failing(*errors)
    monkeypatch.setattr(client, "call", call)
    with pytest.raises(Unavailable):
        client.change("Save", lambda: "request")
    assert len(timeouts) == len(errors)


def test_without_retries_nothing_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("127.0.0.1:1", retries=False)
    call, timeouts = failing(REFUSED)
    monkeypatch.setattr(client, "call", call)
    with pytest.raises(Unavailable):
        client.change("Save", lambda: "request")
    assert len(timeouts) == 1


def test_a_wait_that_outlasts_the_deadline_is_not_begun() -> None:
    assert delay_seconds(REFUSED, 1, 0.02) == 0.01
    assert delay_seconds(REFUSED, 1, 0.01) is None


def test_a_request_that_saves_afterwards_is_not_made_again() -> None:
    assert attempts_max(inference_pb2.InferRequest(session_id="s")) == ATTEMPTS_MAX
    saving = inference_pb2.InferRequest(session_id="s", snapshot_afterwards=inference_pb2.SnapshotAfterwards())
    assert attempts_max(saving) == 1
