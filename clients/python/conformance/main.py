"""Runs the scenarios of tests/conformance:

python main.py [--ca FILE] [--certificate FILE --key FILE] [--token TOKEN] ADDRESS SCENARIOS
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from magnitude.client import Client
from magnitude.errors import CallError, Cancelled
from magnitude.session import Session
from magnitude.stream import Stream
from magnitude.tls import tls_credentials
from magnitude.v1 import inference_pb2, snapshot_pb2

Scenario = dict[str, Any]


class Conformance:
    """One method for each kind of scenario. `patient` tries again where the server says so, `hasty` does not."""

    def __init__(self, address: str, **options: Any) -> None:
        self.patient = Client(address, **options)
        self.hasty = Client(address, **options, retries=False)

    def unary(self, s: Scenario) -> None:
        request = infer_request(s["request"])
        answer = self.patient.call(self.patient.inference.Infer, request)
        assert dict(answer.metadata) == dict(request.metadata)
        check_answer(s["expect"], answer.choices[0].text, answer.choices[0].end, answer.usage)

    def stream(self, s: Scenario) -> None:
        whole = self.patient.call(self.patient.inference.Infer, infer_request(s["request"]))
        stream = stream_of(self.patient, s["request"])
        deltas = []
        for text in stream.texts():
            assert stream.started is not None, "a delta before `started`"
            assert stream.finished is None, "a delta after `finished`"
            deltas.append(text)
        assert stream.finished is not None
        assert "".join(deltas) == whole.choices[0].text
        assert len(deltas) >= s["expect"]["deltasMin"], deltas
        check_answer(s["expect"], "".join(deltas), stream.finished.ends[0], stream.finished.usage)

    def conversation(self, s: Scenario) -> None:
        options = {field.name: value for field, value in infer_request(s["request"]).ListFields()}
        chat = self.patient.conversation([{"role": "system", "content": "Be brief."}], **options)
        for text in s["says"]:
            assert chat.say(text) == s["expect"]["text"]
        assert len(chat.messages) == s["expect"]["messages"]

    def cancel(self, s: Scenario) -> None:
        with stream_of(self.hasty, s["request"]) as stream:
            for count, _ in enumerate(stream.texts(), 1):
                if count == s["afterDeltas"]:
                    break
        self.idle()
        stream = stream_of(self.hasty, s["request"])
        try:
            for _ in stream.texts():
                stream.cancel()
        except Cancelled:
            return
        raise AssertionError("the cancelled stream ended without an error")

    def deadline(self, s: Scenario) -> None:
        seconds = s["timeoutMs"] / 1_000
        request = infer_request(s["request"])
        fails(s["expect"], lambda: self.hasty.call(self.hasty.inference.Infer, request, timeout_seconds=seconds))
        fails(s["expect"], lambda: list(stream_of(self.hasty, s["request"], timeout_seconds=seconds)))

    def refused(self, s: Scenario) -> None:
        request = infer_request(s["request"])
        fails(s["expect"], lambda: self.patient.call(self.patient.inference.Infer, request))
        fails(s["expect"], lambda: list(stream_of(self.patient, s["request"])), "request.")

    def rejected(self, s: Scenario) -> None:
        fails(s["expect"], lambda: self.hasty.call(self.hasty.inference.Infer, infer_request(s["request"])))
        fails(s["expect"], lambda: list(stream_of(self.hasty, s["request"])))

    def balanced(self, s: Scenario) -> None:
        end, answered = time.monotonic() + 10, set[str]()
        while answered != set(s["expect"]["models"]):
            assert time.monotonic() < end, f"all answers are from {answered}"
            answered.add(self.patient.call(self.patient.inference.Infer, infer_request(s["request"])).model)

    def exhausted(self, s: Scenario) -> None:
        with self.holding(s):
            error = fails(s["expect"], lambda: self.hasty.call(self.hasty.inference.Infer, infer_request(s["request"])))
        assert error.retry_after_seconds
        assert error.retry_after_seconds > 0

    def retried(self, s: Scenario) -> None:
        with self.holding(s) as release:
            fails({"code": "RESOURCE_EXHAUSTED"}, lambda: self.hasty.infer("hello"))
            threading.Timer(s["releaseAfterMs"] / 1_000, release).start()
            self.unary(s)

    def session(self, s: Scenario) -> None:
        session = self.new_session()
        say(session, s, 0)
        assert session.save().version == 1
        goes_on(session, s, say(session, s, 1))

    def snapshot(self, s: Scenario) -> None:
        session, brought = self.new_session(), self.new_session()
        agent_state = (bytes(range(251)) * (s["agentStateBytes"] // 251 + 1))[: s["agentStateBytes"]]
        say(session, s, 0)
        assert session.save(agent_state).agent_state_bytes == len(agent_state)
        state = self.patient.sessions.export(session.session_id)
        assert state.agent_state == agent_state, "not what was saved"
        assert state.key_value
        self.patient.sessions.import_state(state, brought.session_id)
        goes_on(brought, s, say(session, s, 1))
        session.delete()

    def repeated(self, s: Scenario) -> None:
        self.reads(s)
        session, brought = self.new_session(), self.new_session()
        assert session.infer(**options_of(s["request"])).choices[0].text == s["expect"]["text"]
        assert "".join(session.stream(**options_of(s["request"])).texts()) == s["expect"]["text"]
        assert session.save(b"state").version == 1
        assert len(session.versions()) == 1
        session.restore()
        self.patient.sessions.import_state(self.patient.sessions.export(session.session_id), brought.session_id)
        assert [session.delete().deleted_versions, brought.delete().deleted_versions] == [1, 1]

    def lost(self, s: Scenario) -> None:
        self.reads(s)
        code, sessions = {"code": s["expect"]["code"]}, self.patient.sessions
        session, brought = self.new_session(), self.new_session()
        fails(code, lambda: session.infer(**options_of(s["request"])))
        fails(code, lambda: list(session.stream(**options_of(s["request"]))))
        fails(code, session.save)
        assert len(session.versions()) == 1
        session.restore()
        state = sessions.export(session.session_id)
        fails(code, lambda: sessions.import_state(state, brought.session_id))
        assert len(brought.versions()) == 1
        fails(code, session.delete)
        assert session.versions() == []

    def reads(self, s: Scenario) -> None:
        """What changes nothing, once each."""
        assert self.patient.health().models
        assert self.patient.list_models()
        assert self.patient.tokenize("hello", add_special=False)
        answer = self.patient.call(self.patient.inference.Infer, infer_request(s["request"]))
        assert answer.choices[0].text == s["expect"]["text"]
        assert "".join(stream_of(self.patient, s["request"]).texts()) == s["expect"]["text"]

    def new_session(self) -> Session:
        return self.patient.session(f"conformance/python/{uuid.uuid4()}")

    @contextlib.contextmanager
    def holding(self, s: Scenario) -> Iterator[Callable[[], None]]:
        """Fills the server with streams that go on until they are released."""
        with contextlib.ExitStack() as held:
            for _ in range(s["hold"]):
                next(iter(held.enter_context(stream_of(self.patient, s["held"]))))
            yield held.close

    def idle(self) -> None:
        """Waits until the server has nothing to do: what was cancelled has ended there too."""
        end = time.monotonic() + 10
        while (load := self.hasty.load()).running_requests + load.waiting_requests:
            assert time.monotonic() < end, "the server is still busy"
            time.sleep(0.005)


def infer_request(content: dict[str, Any]) -> inference_pb2.InferRequest:
    return json_format.ParseDict(content, inference_pb2.InferRequest())


def stream_of(client: Client, content: dict[str, Any], timeout_seconds: float | None = None) -> Stream:
    return client.stream(timeout_seconds=timeout_seconds, **options_of(content))


def options_of(content: dict[str, Any]) -> dict[str, Any]:
    """The same request as arguments of the client's methods."""
    options = {field.name: value for field, value in infer_request(content).ListFields()}
    return {"prompt": options.pop("text"), **options}


def say(session: Session, s: Scenario, index: int) -> str:
    options = {field.name: value for field, value in infer_request(s["request"]).ListFields()}
    return session.infer(s["says"][index], **options).choices[0].text


def goes_on(session: Session, s: Scenario, first: str) -> None:
    """Restores a session: it says again what it said first. Then it is forgotten."""
    fidelity = session.restore().fidelity
    assert snapshot_pb2.RestoreFidelity.Name(fidelity) == s["expect"]["fidelity"]
    assert say(session, s, 1) == first
    session.delete()


def check_answer(expect: dict[str, Any], text: str, end: Any, usage: Any) -> None:
    assert text == expect.get("text", text)
    found = (inference_pb2.FinishReason.Name(end.finish_reason), usage.completion_tokens)
    assert found == (expect["finishReason"], expect["completionTokens"])


def fails(expect: dict[str, Any], call: Callable[[], Any], prefix: str = "") -> CallError:
    error = failure_of(call)
    assert (error.code.name, error.reason) == (expect["code"], expect.get("reason", error.reason)), error
    assert "field" not in expect or prefix + expect["field"] in error.field_violations, error.field_violations
    return error


def failure_of(call: Callable[[], Any]) -> CallError:
    try:
        call()
    except CallError as error:
        return error
    raise AssertionError("the call did not fail")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ca")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--token")
    parser.add_argument("address")
    parser.add_argument("scenarios", type=Path)
    given = parser.parse_args()
    credentials = tls_credentials(given.ca, given.certificate, given.key) if given.ca else None
    conformance = Conformance(given.address, credentials=credentials, token=given.token)
    failed = False
    for scenario in json.loads(given.scenarios.read_text(encoding="utf-8")):
        begin = time.monotonic()
        try:
            getattr(conformance, scenario["kind"])(scenario)
            if scenario["kind"] != "rejected":
                conformance.idle()
        except Exception as error:
            failed = True
            print(f"FAILED {scenario['name']}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok {scenario['name']} ({(time.monotonic() - begin) * 1_000:.0f} ms)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
