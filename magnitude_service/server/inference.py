"""InferenceService: from a message to a running generation and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from magnitude.v1 import inference_pb2, inference_pb2_grpc, snapshot_pb2
from magnitude_service import metrics
from magnitude_service.scheduling.request import PromptProgress
from magnitude_service.scheduling.session import Session
from magnitude_service.server import answers, bounds, convert, limits
from magnitude_service.server.answer import Piece
from magnitude_service.server.generation import SLOW_READER, Generation, Generations
from magnitude_service.server.prompt import detokenize_response, tokenize_response
from magnitude_service.server.request_log import note
from magnitude_service.server.served_models import ModelDescription, Runtime, ServedModel, ServedModels
from magnitude_service.server.sessions import Sessions
from magnitude_service.server.text_workers import TextWorkers

STREAM_PREFIX = "request."
"""Where the fields of InferRequest stand in StreamInferRequest."""


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves every model. Nothing here takes longer than a moment: text is the workers' part, tokens the engine's."""

    def __init__(
        self,
        models: ServedModels,
        generations: Generations,
        workers: TextWorkers,
        metrics_: metrics.Metrics,
        stream_buffer_bytes: int,
        sessions: Sessions,
    ) -> None:
        self._models = models
        self._generations = generations
        self._workers = workers
        self._metrics = metrics_
        self._stream_buffer_bytes = stream_buffer_bytes
        self._sessions = sessions

    async def Infer(self, request: inference_pb2.InferRequest, context: Any) -> inference_pb2.InferResponse:
        """Answers with everything at once."""
        model, generation = await self._start(request, context, streams=False)
        try:
            await generation.ended.wait()
        finally:
            generation.abandon_unless_ended()
        self._end(model, generation)
        response = await self._workers.run(answers.infer_response, generation, model)
        if generation.saving is not None:
            response.snapshot.CopyFrom(await asyncio.shield(generation.saving))
        return response

    async def StreamInfer(
        self, request: inference_pb2.StreamInferRequest, context: Any
    ) -> AsyncIterator[inference_pb2.StreamInferResponse]:
        """Answers as the text comes. While the reader is slow, what comes meanwhile is gathered into one delta."""
        if not request.HasField("request"):
            bounds.refuse("request", "absent", "an InferRequest", "Set request.")
        interval_ms = bounds.number("delta_interval_ms", request.delta_interval_ms, 0, limits.DELTA_INTERVAL_MS_MAX)
        model, generation = await self._start(request.request, context, streams=True)
        try:
            yield answers.started(generation, model)
            async for event in self._events(model, generation, interval_ms / 1_000):
                yield event
            self._end(model, generation)
            finished = answers.finished(generation)
            if generation.saving is not None:
                finished.finished.snapshot.CopyFrom(await asyncio.shield(generation.saving))
            yield finished
        finally:
            generation.abandon_unless_ended()

    async def Abort(self, request: inference_pb2.AbortRequest, context: Any) -> inference_pb2.AbortResponse:
        """Ends requests early; each still answers with what there is."""
        if not request.request_ids:
            bounds.refuse("request_ids", "empty", "at least one name", "Name the requests to end.")
        bounds.count("request_ids", len(request.request_ids), limits.ABORTED_REQUESTS_MAX)
        aborted, unknown = self._generations.cancel(request.request_ids)
        return inference_pb2.AbortResponse(aborted_request_ids=aborted, unknown_request_ids=unknown)

    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Any) -> inference_pb2.TokenizeResponse:
        """The ids that Infer would compute."""
        model = self._models.find(request.model)
        note(model=model.name)
        return await self._workers.run(tokenize_response, request, model.name, *model.open())

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Any
    ) -> inference_pb2.DetokenizeResponse:
        """The text of ids."""
        model = self._models.find(request.model)
        note(model=model.name)
        return await self._workers.run(detokenize_response, request, model.name, *model.open())

    async def GetLoad(self, request: inference_pb2.GetLoadRequest, context: Any) -> inference_pb2.GetLoadResponse:
        """How busy a model is; one that drains can still be asked."""
        model = self._models.find(request.model)
        runtime = model.runtime or model.open()[1]
        return inference_pb2.GetLoadResponse(model=model.name, load=answers.load(runtime.engine.load()))

    async def _start(
        self, request: inference_pb2.InferRequest, context: Any, *, streams: bool
    ) -> tuple[ServedModel, Generation]:
        """Checks the request, tokenizes its prompt beside the loop, and hands it to the engine."""
        prefix = STREAM_PREFIX if streams else ""
        remaining = context.time_remaining()
        deadline_seconds = None if remaining is None else time.monotonic() + remaining
        model = self._models.find(request.model)
        note(model=model.name, request_id=request.request_id)
        description, runtime = model.open()
        model.expect(
            convert.expected_hash(request.expected_model_id, f"{prefix}expected_model_id"),
            convert.expected_hash(request.expected_content_sha256, f"{prefix}expected_content_sha256"),
        )
        session_id = convert.session_name(request, prefix)
        note(session_id=session_id)
        session = None
        if request.HasField("snapshot_afterwards"):
            await self._sessions.prepare_to_save(model)
        if session_id:
            session = await self._sessions.hold(model, session_id, f"request {request.request_id or 'without a name'}")
        try:
            generation = await self._workers.run(
                self._generation,
                request,
                model,
                description,
                runtime,
                session,
                deadline_seconds=deadline_seconds,
                streams=streams,
            )
            note(request_id=generation.request_id, prompt_tokens=generation.prepared.request.prompt.size)
            self._generations.start(generation)
        except BaseException:
            if session is not None:
                self._sessions.release(runtime, session)
            raise
        return model, generation

    def _generation(
        self,
        request: inference_pb2.InferRequest,
        model: ServedModel,
        description: ModelDescription,
        runtime: Runtime,
        session: Session | None,
        *,
        deadline_seconds: float | None,
        streams: bool,
    ) -> Generation:
        """The checked request, ready to start. Runs on a text worker."""
        prefix = STREAM_PREFIX if streams else ""
        prepared = convert.prepare(
            request,
            description,
            runtime,
            deadline_seconds=deadline_seconds,
            streams=streams,
            prefix=prefix,
            session=session,
        )
        buffer_bytes = self._stream_buffer_bytes if streams else None
        save = None
        if request.HasField("snapshot_afterwards"):
            options = convert.save_options(request.snapshot_afterwards, f"{prefix}snapshot_afterwards.")

            def save(session: Session) -> asyncio.Task[snapshot_pb2.Snapshot]:
                return self._sessions.start(self._sessions.save_and_release(model, session, options))

        return Generation(prepared, runtime, buffer_bytes, save)

    async def _events(
        self, model: ServedModel, generation: Generation, interval_seconds: float
    ) -> AsyncIterator[inference_pb2.StreamInferResponse]:
        """Progress and deltas until the request has ended. Raises what it failed with."""
        is_over = False
        while not is_over:
            await generation.changed.wait()
            generation.changed.clear()
            if generation.failure is not None:
                if generation.failure.reason == SLOW_READER:
                    self._metrics.add(metrics.SLOW_READERS, 1, model.name)
                raise generation.failure
            is_over = generation.ended.is_set()
            progress, pieces = generation.take_progress(), generation.take_pieces()
            if generation.prepared.request.prompt_logprobs or generation.prepared.returns.logprobs is not None:
                events = await self._workers.run(stream_events, generation, progress, pieces)
            else:
                events = stream_events(generation, progress, pieces)
            for event in events:
                yield event
            if interval_seconds and not is_over:
                with suppress(TimeoutError):
                    await asyncio.wait_for(generation.ended.wait(), interval_seconds)

    def _end(self, model: ServedModel, generation: Generation) -> None:
        """Counts a request that has ended, and raises what it failed with."""
        if generation.failure is not None:
            raise generation.failure
        reasons = [answer.end.reason.value for answer in generation.answers if answer.end is not None]
        usage = answers.usage(generation)
        note(completion_tokens=usage.completion_tokens, finish_reasons=",".join(sorted(set(reasons))))
        for reason in reasons:
            self._metrics.add(metrics.FINISHES, 1, model.name, reason)
        prompt_tokens = generation.prepared.request.prompt.size
        self._metrics.add(metrics.PROMPT_TOKENS, prompt_tokens, model.name)
        self._metrics.observe(metrics.PROMPT_LENGTH, prompt_tokens, model.name)
        self._metrics.add(metrics.COMPLETION_TOKENS, usage.completion_tokens, model.name)
        self._metrics.add(metrics.DRAFT_PROPOSED, usage.draft_proposed_tokens, model.name)
        self._metrics.add(metrics.DRAFT_ACCEPTED, usage.draft_accepted_tokens, model.name)
        if generation.finished is not None:
            self._metrics.add(metrics.CACHED_TOKENS, generation.finished.cached_tokens, model.name)
            self._metrics.add(metrics.PREFIX_QUERIES, generation.session_tokens, model.name)
            self._metrics.add(metrics.PREFIX_HITS, generation.finished.cached_tokens, model.name)
            seconds = generation.finished.timings
            self._metrics.observe(metrics.QUEUE_SECONDS, seconds.queue, model.name)
            self._metrics.observe(metrics.PREFILL_SECONDS, seconds.prefill, model.name)
            self._metrics.observe(metrics.END_TO_END_SECONDS, seconds.total, model.name)
            if seconds.first_token:  # 0: no token was asked for
                self._metrics.observe(metrics.FIRST_TOKEN_SECONDS, seconds.first_token, model.name)
                self._metrics.observe(metrics.DECODE_SECONDS, seconds.decode, model.name)


def stream_events(
    generation: Generation, progress: PromptProgress | None, pieces: Sequence[Piece]
) -> list[inference_pb2.StreamInferResponse]:
    """What a stream shows of progress and pieces."""
    shown = answers.progress(generation, progress)
    return [*([shown] if shown is not None else []), *answers.deltas(generation, pieces)]
