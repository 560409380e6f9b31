"""A real server on loopback, with an engine and a tokenizer that tests can see through."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from magnitude.client import Client
from magnitude_service.errors import (
    CancelledError,
    DeadlineExceededError,
    MagnitudeError,
)
from magnitude_service.metrics import Metrics
from magnitude_service.scheduling.load import Load
from magnitude_service.scheduling.request import (
    ChoiceFinished,
    Event,
    FinishReason,
    PromptProgress,
    Request,
    RequestFinished,
    Timings,
    TokenChosen,
    TokenLogprobs,
)
from magnitude_service.scheduling.session import Session
from magnitude_service.scheduling.session_table import SessionTable
from magnitude_service.server.build import Server
from magnitude_service.server.generation import Generations
from magnitude_service.server.health import MemoryReport
from magnitude_service.server.options import ServerOptions
from magnitude_service.server.served_models import ModelDescription, Runtime, ServedModel, ServedModels

EOS, START, END_OF_TURN = 256, 257, 258
CONTROLS = {EOS: b"<eos>", START: b"<start>", END_OF_TURN: b"<end>"}
VOCABULARY = 300
CONTEXT = 8_192
STEP_SECONDS = 0.001
"""How long a step of the fake engine takes: no engine is faster than the loop."""


class ByteTokenizer:
    """A token per byte, so that every character of more than one byte is spread over tokens."""

    vocabulary_size = VOCABULARY
    bos_id = None
    eog_ids = frozenset({EOS})
    token_bytes_max = max(map(len, CONTROLS.values()))

    def encode(self, text: bytes | str, *, parse_special: bool, add_special: bool = False) -> np.ndarray:
        return self.encode_segments([(text, parse_special)], add_special=add_special)

    def encode_segments(self, segments: Any, *, add_special: bool = False) -> np.ndarray:
        ids: list[int] = []
        for text, trusted in segments:
            data = text.encode() if isinstance(text, str) else text
            for token, spelt in CONTROLS.items() if trusted else ():
                data = data.replace(spelt, b"\xff" + bytes([token - EOS]))
            pairs = iter(data)
            ids += [EOS + next(pairs) if byte == 0xFF else byte for byte in pairs]
        return np.array(ids, np.int32)

    def decode(self, ids: Any, *, render_special: bool = False) -> bytes:
        return b"".join(self.token_bytes(int(token), render_special=render_special) for token in ids)

    def token_bytes(self, id: int, *, render_special: bool = False) -> bytes:
        if id < 256:
            return bytes([id])
        return CONTROLS.get(id, b"?") if render_special else b""


class Segment(NamedTuple):
    text: str
    trusted: bool


class FakeTemplate:
    """<start>role\ncontent<end>, and remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.refusal: MagnitudeError | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Any = None,
        add_generation_prompt: bool = True,
        arguments: Any = None,
        now: Any = None,
    ) -> list[Segment]:
        self.calls.append(
            {"messages": messages, "arguments": arguments, "add_generation_prompt": add_generation_prompt, "now": now}
        )
        if self.refusal is not None:
            raise self.refusal
        segments = []
        for message in messages:
            segments += [Segment(f"<start>{message['role']}\n", True), Segment(message["content"], False)]
            segments += [Segment("<end>\n", True)]
        return segments + ([Segment("<start>assistant\n", True)] if add_generation_prompt else [])


@dataclass
class Running:
    """One request of the fake engine, and the tokens that each choice will say."""

    request: Request
    tokens: list[list[int]]
    said: list[int]
    open: set[int]
    is_prefilled: bool = False
    began: float = field(default_factory=time.monotonic)


class FakeEngine:
    """Says the prompt back and then EOS, one token of each choice per step, on a thread of its own."""

    def __init__(self, deliver: Callable[[list[Event]], None]) -> None:
        self.script: Callable[[Request, int], list[int]] = lambda request, choice: [*request.prompt.tolist(), EOS]
        self.refusal: MagnitudeError | None = None
        self.failure: MagnitudeError | None = None
        self.sessions = SessionTable(8, time.monotonic, lambda: None)
        self.submitted: list[Request] = []
        self.finishes: list[tuple[str, int, int]] = []
        self.aborts: list[str] = []
        self._aborting: set[str] = set()
        self.changed = threading.Condition()
        self.pace: Callable[[], object] = lambda: None
        self._deliver = deliver
        self._running: dict[str, Running] = {}
        self._steps_left: float = float("inf")
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        with self.changed:
            if self.refusal is not None:
                raise self.refusal
            choices = range(request.choices)
            tokens = [self.script(request, choice) for choice in choices]
            self.submitted.append(request)
            self._running[request.request_id] = Running(request, tokens, [0] * request.choices, set(choices))
            self.changed.notify_all()

    def finish(self, request_id: str, choice: int, generated_kept: int) -> None:
        with self.changed:
            self.finishes.append((request_id, choice, generated_kept))
            if request_id in self._running:
                self._running[request_id].open.discard(choice)
            self.changed.notify_all()

    def abort(self, request_id: str) -> None:
        with self.changed:
            self.aborts.append(request_id)
            self._aborting.add(request_id)
            self.changed.notify_all()

    def load(self) -> Load:
        return Load(len(self._running), 0, 3, 64, 12.5)

    def pause(self, after_steps: int = 0) -> None:
        """Stops after so many further steps; aborts and deadlines still count."""
        with self.changed:
            self._steps_left = after_steps

    def resume(self) -> None:
        with self.changed:
            self._steps_left = float("inf")
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        """Until the engine has heard what a test waits for."""
        with self.changed:
            assert self.changed.wait_for(condition, seconds), "the engine never heard of it"

    @property
    def idle(self) -> bool:
        return not self._running

    def stop(self) -> None:
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            with self.changed:
                events = self._ended() or self._step()
                if not events:
                    self.changed.wait(self._next_deadline())
                self.changed.notify_all()
            if events:
                self._deliver(events)
                self.pace()

    def _next_deadline(self) -> float | None:
        deadlines = [r.request.deadline_seconds for r in self._running.values() if r.request.deadline_seconds]
        return max(min(deadlines) - time.monotonic(), 0) if deadlines else None

    def _ended(self) -> list[Event]:
        """The ends of what was aborted, is late, or has nothing left to say."""
        events: list[Event] = []
        for request_id, running in list(self._running.items()):
            error: MagnitudeError | None = None
            deadline = running.request.deadline_seconds
            if request_id in self._aborting:
                error = CancelledError("aborted")
            elif deadline is not None and time.monotonic() >= deadline:
                error = DeadlineExceededError("The deadline passed.")
            elif self.failure is not None and running.is_prefilled:
                error = self.failure
            if error is not None or not running.open:
                del self._running[request_id]
                self._aborting.discard(request_id)
                self._give_back(running)
                events.append(RequestFinished(request_id, Timings(0.001, 0.002, 0.003, 0.004, 0.01), 0, error))
        return events

    def _give_back(self, running: Running) -> None:
        """The session of a request has its tokens; pages of all but the last are said to be computed."""
        session = running.request.session
        if session is not None and running.is_prefilled:
            said = running.tokens[0][: running.said[0]]
            parts = session.tokens[: session.settled], running.request.prompt, np.array(said, np.int32)
            session.tokens = np.concatenate(parts)
            session.computed = session.tokens.size - 1

    def page_token_bytes(self, cache_type: str = "") -> int:
        return 4

    def export_pages(
        self, session: Session, target: np.ndarray, on_done: Callable[[Any], None], cache_type: str = ""
    ) -> None:
        """The tokens themselves, four bytes each."""
        target[:] = session.tokens[: session.computed].view(np.uint8)
        threading.Thread(target=on_done, args=(None,)).start()

    def _step(self) -> list[Event]:
        if not self._running or self._steps_left <= 0:
            return []
        self._steps_left -= 1
        return [event for running in self._running.values() for event in self._advance(running)]

    def _advance(self, running: Running) -> list[Event]:
        request = running.request
        request_id, total = request.request_id, int(request.prompt.size)
        if not running.is_prefilled:
            running.is_prefilled = True
            half = max(total // 2, 1)
            scores = [
                TokenLogprobs(-float(i), tuple((i, -1.0) for i in range(request.top_logprobs))) for i in range(total)
            ]
            if not request.prompt_logprobs:
                return [PromptProgress(request_id, half, total), PromptProgress(request_id, total, total)]
            return [
                PromptProgress(request_id, half, total, 1, scores[1:half]),
                PromptProgress(request_id, total, total, half, scores[half:]),
            ]
        events: list[Event] = []
        for choice in sorted(running.open):
            events += self._say(running, choice)
        return events

    def _say(self, running: Running, choice: int) -> list[Event]:
        request, said = running.request, running.said[choice]
        most = request.stopping.max_tokens
        limit = FinishReason.CONTEXT_LIMIT if most is None else FinishReason.MAX_TOKENS
        tokens = running.tokens[choice]
        if said >= (CONTEXT if most is None else most) or said >= len(tokens):
            running.open.discard(choice)
            return [ChoiceFinished(request.request_id, choice, limit)]
        token = tokens[said]
        running.said[choice] += 1
        if token in request.stopping.end_token_ids or token in request.stopping.stop_token_ids:
            running.open.discard(choice)
            is_end = token in request.stopping.end_token_ids
            reason = FinishReason.EOS if is_end else FinishReason.STOP_TOKEN
            return [ChoiceFinished(request.request_id, choice, reason, token)]
        top = tuple((i, -0.5 - i) for i in range(request.top_logprobs))
        return [TokenChosen(request.request_id, choice, token, TokenLogprobs(-0.5, top))]


class ServerUnderTest:
    """The server on a thread with its own loop, its engine, its model, and a client."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.generations = Generations()
        self.metrics = Metrics()
        self.engine = FakeEngine(self.generations.deliver)
        self.tokenizer = ByteTokenizer()
        self.template = FakeTemplate()
        self.model = ServedModel("tiny")
        self.models = ServedModels([self.model])
        self.description = ModelDescription(
            model_id="ab" * 32,
            architecture="llama",
            weight_type="Q4_0",
            parameter_count=1_000,
            file_bytes=2_000,
            context_tokens=CONTEXT,
            trained_context_tokens=2 * CONTEXT,
            vocabulary_size=VOCABULARY,
            chat_template="{{ messages }}",
            running_requests_max=4,
            waiting_requests_max=8,
        )
        self.model.ready(self.description, Runtime(self.engine, self.tokenizer, self.template))
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.engine.pace = lambda: self.on_loop(asyncio.sleep(STEP_SECONDS))
        self.port = self.on_loop(self._start())
        self.address = f"127.0.0.1:{self.port}"
        self.client = Client(self.address, timeout_seconds=60)
        self.client_without_retries = Client(self.address, timeout_seconds=60, retries=False)

    async def _start(self) -> int:
        self.memory = MemoryReport(mapped_bytes=2_000, limit_bytes=1 << 30, available_bytes=1 << 30)
        self.server = Server(self.options, self.models, self.generations, self.metrics, lambda: self.memory)
        return await self.server.start()

    def on_loop(self, work: Any) -> Any:
        """Runs a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def channel(self, *options: tuple[str, Any]) -> grpc.Channel:
        """Another connection."""
        return grpc.insecure_channel(self.address, [("grpc.use_local_subchannel_pool", 1), *options])

    def close(self) -> None:
        self.client.close()
        self.client_without_retries.close()
        self.engine.resume()
        self.on_loop(self.server.stop(0))
        self.engine.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[ServerUnderTest]:
    """A READY server."""
    server = ServerUnderTest(ServerOptions(port=0))
    yield server
    server.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerUnderTest]]:
    """Makes servers with other options."""
    servers: list[ServerUnderTest] = []

    def make(**options: Any) -> ServerUnderTest:
        servers.append(ServerUnderTest(ServerOptions(port=0, **options)))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
