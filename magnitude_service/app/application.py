"""One server with one model: what is built when, what is told about it, and how it ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING

from magnitude_service import config
from magnitude_service.app.loaded_model import TEMPLATE_KEY, LoadedModel, Phases
from magnitude_service.errors import MagnitudeError
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.snapshot.options import SnapshotOptions

if TYPE_CHECKING:
    from magnitude_service.loader import MappedModel
    from magnitude_service.monitoring import Monitoring
    from magnitude_service.scheduling.engine_thread import EngineThread
    from magnitude_service.server.health import MemoryReport
    from magnitude_service.server.served_models import ModelDescription, PageDescription
    from magnitude_service.snapshot.lazy_manager import LazyManager

_log = logging.getLogger(__name__)

IDLE_NICE = 19
"""Niceness of the thread that hashes the model: it computes only where nobody else does."""

TOKENS_KEY = "tokenizer.ggml.tokens"


class Application:
    """One server with one model, from LOADING to its end. Lives on one event loop."""

    def __init__(self, configuration: config.Configuration, phases: Phases) -> None:
        from magnitude_service.metrics import Metrics
        from magnitude_service.server.build import Server
        from magnitude_service.server.generation import Generations
        from magnitude_service.server.options import ServerOptions
        from magnitude_service.server.served_models import ServedModel, ServedModels

        self._options = configuration.layer(config.AppOptions)
        self._scheduling = configuration.layer(SchedulingOptions)
        self._server_options = configuration.layer(ServerOptions)
        self._phases = phases
        self._loaded: LoadedModel | None = None
        self._snapshots = configuration.layer(SnapshotOptions)
        self._states: LazyManager | None = None
        self._hashing_cancelled = threading.Event()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._model = ServedModel(self._options.model_name or Path(self._options.model).stem)
        self._models = ServedModels([self._model])
        self._metrics = Metrics()
        self._generations = Generations()
        self._server = Server(self._server_options, self._models, self._generations, self._metrics, self._memory)
        self._monitoring: Monitoring | None = None
        if self._server_options.metrics_port:
            from magnitude_service.monitoring import Monitoring

            self._monitoring = Monitoring(self._metrics, self._model.name)

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self._server.port

    def stop(self) -> None:
        """Begins the end of `serve`; called again, ends the grace period. On its loop."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    async def serve(self, loading: concurrent.futures.Future[LoadedModel], on_ready: Callable[[str], None]) -> None:
        """Listens at once, answers LOADING until the model is there, and returns when all is over.

        Raises: what the model could not be loaded for, or the port not be had.
        """
        try:
            await self._serve(loading, on_ready)
        finally:
            if self._monitoring is not None:
                await asyncio.to_thread(self._monitoring.close)

    async def _serve(self, loading: concurrent.futures.Future[LoadedModel], on_ready: Callable[[str], None]) -> None:
        with self._phases.phase("listen"):
            await self._server.start()
        try:
            if self._monitoring is not None:
                options = self._server_options
                await asyncio.to_thread(self._monitoring.open_port, options.host, options.metrics_port)
            found = asyncio.wrap_future(loading)
            stopping: asyncio.Future[object] = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait((found, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not found.done():  # the loading thread is a daemon, and ends with the process
                await self._server.stop(0)
                return
            loaded = await found
            engine = self._start_engine(loaded)
        except BaseException:
            await self._server.stop(0)
            raise
        on_ready(self._ready_line(loaded))
        hashing = threading.Thread(
            target=self._hash_when_idle, args=(loaded.model,), name="magnitude-hash", daemon=True
        )
        hashing.start()
        if self._monitoring is not None:
            measure = self._monitoring.measure_when_idle
            threading.Thread(target=measure, args=(hashing.join,), name="magnitude-measure", daemon=True).start()
        await self._stopping.wait()
        await self._end(loaded, engine)

    def _start_engine(self, loaded: LoadedModel) -> EngineThread:
        from magnitude_service.engine.canonical_pages import CanonicalPages
        from magnitude_service.scheduling.engine_thread import EngineThread
        from magnitude_service.server.served_models import Runtime
        from magnitude_service.snapshot.lazy_manager import LazyManager

        self._loaded = loaded
        limits = ModelLimits(loaded.plan.context_tokens, loaded.program.vocabulary_size)
        engine = EngineThread(
            loaded.executor,
            loaded.pool,
            limits,
            self._scheduling,
            time.monotonic,
            self._generations.deliver,
            check=loaded.model.check,
            on_failed=self._model.fail,
            on_step=None if self._monitoring is None else self._monitoring.count_step,
            copies=CanonicalPages(loaded.cache),
        )
        self._states = LazyManager(loaded.model.path, self._snapshots)
        description = self._describe(loaded)
        if self._monitoring is not None:
            self._monitoring.watch(loaded.model, loaded.program, engine.load, loaded.threads)
            kernels = loaded.kernels
            self._monitoring.describe(description.model_id, description.weight_type, kernels, self._phases.seconds)
            self._monitoring.watch_snapshots(self._states.statistics)
        engine.start()
        pages = _describe_pages(loaded)
        self._model.ready(description, Runtime(engine, loaded.tokenizer, loaded.template, pages, self._states))
        return engine

    def _describe(self, loaded: LoadedModel) -> ModelDescription:
        from magnitude_service.server.served_models import ModelDescription

        spec = loaded.model.spec
        largest: dict[str, int] = {}
        for tensor in spec.tensors.values():
            largest[tensor.type.name] = largest.get(tensor.type.name, 0) + tensor.nbytes
        return ModelDescription(
            model_id=spec.model_id,
            architecture=spec.architecture,
            weight_type=max(largest, key=lambda name: largest[name]),
            parameter_count=sum(math.prod(tensor.shape) for tensor in spec.tensors.values()),
            file_bytes=spec.file_bytes,
            context_tokens=loaded.plan.context_tokens,
            trained_context_tokens=loaded.program.context_length,
            vocabulary_size=loaded.program.vocabulary_size,
            chat_template=loaded.model.metadata.text(TEMPLATE_KEY, default=""),
            running_requests_max=self._scheduling.sequences_max,
            waiting_requests_max=self._scheduling.waiting_max,
        )

    def _ready_line(self, loaded: LoadedModel) -> str:
        plan = loaded.plan
        return (
            f"ready on {self._server_options.host}:{self.port}: {self._model.name}, "
            f"{plan.weights_bytes / 2**20:.0f} MiB mapped, {plan.cache_bytes / 2**20:.0f} MiB for "
            f"{plan.pages_total} pages, {loaded.threads} threads"
        )

    def _hash_when_idle(self, model: MappedModel) -> None:
        """What was saved before is opened; then the content hash, where nobody else wants to compute."""
        if self._states is not None:
            self._states.open_what_is_there()
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), IDLE_NICE)
            self._model.content_sha256 = model.content_sha256(is_cancelled=self._hashing_cancelled.is_set)
        except MagnitudeError as error:
            if not self._hashing_cancelled.is_set():
                _log.warning("the content hash cannot be had: %s", error)

    async def _end(self, loaded: LoadedModel, engine: EngineThread) -> None:
        """The port closes last: until then a new caller hears DRAINING, and not that nobody is there."""
        end_seconds = time.monotonic() + self._options.grace_seconds
        self._hashing_cancelled.set()
        self._server.drain()
        engine.drain(self._options.grace_seconds)
        await self._unless_hurried(asyncio.to_thread(engine.wait_drained, self._options.grace_seconds))
        await self._unless_hurried(self._server.settle())
        await asyncio.to_thread(engine.stop)
        await self._unless_hurried(self._server.stop(max(end_seconds - time.monotonic(), 0)))
        await self._server.stop(0)
        if loaded.template is not None:
            loaded.template.close()
        if self._states is not None:
            try:
                await asyncio.to_thread(self._states.close)
            except MagnitudeError as error:
                _log.error("the state file could not be closed well: %s", error)

    async def _unless_hurried(self, work: Coroutine[object, object, object]) -> None:
        """Waits for `work`, but no longer than until a second signal; then it goes on by itself."""
        waited = [asyncio.create_task(work), asyncio.create_task(self._hurrying.wait())]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        waited[1].cancel()

    def _memory(self) -> MemoryReport:
        from magnitude_service.observer import resident_bytes
        from magnitude_service.server.health import MemoryReport

        resident = resident_bytes()
        loaded, runtime = self._loaded, self._model.runtime
        if loaded is None or runtime is None:
            return MemoryReport(anonymous_bytes=resident["anonymous"])
        return MemoryReport(
            mapped_bytes=loaded.model.spec.file_bytes,
            mapped_resident_bytes=min(resident["file"], loaded.model.spec.file_bytes),
            key_value_bytes=loaded.plan.cache_bytes,
            key_value_used_bytes=runtime.engine.load().pages_used * loaded.plan.layout.page_bytes,
            anonymous_bytes=resident["anonymous"],
            limit_bytes=loaded.plan.budget_bytes,
            available_bytes=max(0, loaded.plan.budget_bytes - resident["anonymous"]),
        )


def _describe_pages(loaded: LoadedModel) -> PageDescription:
    from magnitude_service.engine.batch import PAGE_TOKENS
    from magnitude_service.engine.canonical_pages import problem_of, row_bytes
    from magnitude_service.engine.options import computed_by, equal_sources
    from magnitude_service.server.served_models import PageDescription

    layout = loaded.plan.layout
    return PageDescription(
        layers=layout.shape.layers,
        heads=layout.shape.key_value_heads,
        head_size=layout.shape.head_size,
        page_tokens=PAGE_TOKENS,
        cache_type=layout.cache_type.name.lower(),
        instruction_set=computed_by(loaded.kernels),
        equal_instruction_sets=equal_sources(loaded.kernels),
        vocabulary_id=functools.cache(lambda: loaded.model.metadata.strings(TOKENS_KEY).sha256()),
        row_bytes=row_bytes,
        problem_of=problem_of,
    )
