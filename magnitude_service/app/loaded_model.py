"""A model with everything that computes on it: mapped, prepared, and not yet served."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnitude_service import config
from magnitude_service.allocator.options import AllocatorOptions
from magnitude_service.engine.options import EngineOptions
from magnitude_service.loader.options import LoaderOptions
from magnitude_service.scheduling.options import SchedulingOptions
from magnitude_service.text.options import TemplateOptions

if TYPE_CHECKING:
    from magnitude_service.allocator.pages import KeyValueCache, PagePool
    from magnitude_service.allocator.resources import ModelResourceAllocator, ResourcePlan
    from magnitude_service.engine.native import NativeOptions
    from magnitude_service.engine.program import Program
    from magnitude_service.loader import MappedModel
    from magnitude_service.scheduling.engine_loop import Executor
    from magnitude_service.text.templates import ChatTemplate
    from magnitude_service.text.tokenizer import Tokenizer

TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(slots=True)
class Phases:
    """How long each part of the start took, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures one."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in self.seconds.items())


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything that computes on it, before its engine thread runs."""

    model: MappedModel
    program: Program
    tokenizer: Tokenizer
    template: ChatTemplate | None
    plan: ResourcePlan
    executor: Executor
    cache: KeyValueCache
    pool: PagePool
    threads: int
    kernels: str
    """Their instruction set, or "reference"."""


def load_model(configuration: config.Configuration, phases: Phases) -> LoadedModel:
    """Maps the model and prepares it. Raises what the loader, the text, the engine or the allocator raises."""
    options = configuration.layer(config.AppOptions)
    with phases.phase("map"):
        from magnitude_service.loader.mmap_model_loader import MMapModelLoader

        cache_folder = config.cache_folder(options.cache_dir)
        model = MMapModelLoader(configuration.layer(LoaderOptions), cache_folder=cache_folder).load(options.model)
    with phases.phase("tokenizer"):
        from magnitude_service.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_metadata(model.metadata)
        template = _template(model, tokenizer, configuration.layer(TemplateOptions))
    with phases.phase("program"):
        from magnitude_service.engine.architectures import record

        program = record(model)
    with phases.phase("memory"):
        native = _native_options(configuration)
        plan, allocator = _plan(configuration, model, program, native)
        cache, pool = allocator.allocate(plan)
    with phases.phase("executor"):
        executor = _executor(options.executor, program, model, cache, native)
        kernels = _kernels(options.executor, native.isa)
    return LoadedModel(model, program, tokenizer, template, plan, executor, cache, pool, native.threads, kernels)


def _native_options(configuration: config.Configuration) -> NativeOptions:
    from magnitude_service.allocator.machine import read_processors
    from magnitude_service.engine.native import NativeOptions

    engine, scheduling = configuration.layer(EngineOptions), configuration.layer(SchedulingOptions)
    threads = engine.threads or read_processors().threads
    return NativeOptions(threads, engine.cpu_isa, scheduling.rows_max, scheduling.sequences_max)


def _executor(
    kind: str, program: Program, model: MappedModel, cache: KeyValueCache, options: NativeOptions
) -> Executor:
    if kind == "reference":
        from magnitude_service.engine.reference import ReferenceExecutor

        return ReferenceExecutor(program, model, cache)
    from magnitude_service.engine.native import NativeExecutor

    return NativeExecutor(program, model, cache, options)


def _kernels(executor: str, forced: str) -> str:
    if executor == "reference":
        return executor
    from magnitude_service.kernels import select_instruction_set

    return select_instruction_set(forced)


def _template(model: MappedModel, tokenizer: Tokenizer, options: TemplateOptions) -> ChatTemplate | None:
    from magnitude_service.text.templates import ChatTemplate

    if TEMPLATE_KEY not in model.metadata:
        return None

    def text(token_id: int | None) -> str:
        return "" if token_id is None else tokenizer.token_text(token_id).decode("utf-8", "replace")

    source = model.metadata.text(TEMPLATE_KEY)
    return ChatTemplate(source, bos_text=text(tokenizer.bos_id), eos_text=text(tokenizer.eos_id), options=options)


def _plan(
    configuration: config.Configuration, model: MappedModel, program: Program, native: NativeOptions
) -> tuple[ResourcePlan, ModelResourceAllocator]:
    from magnitude_service.allocator.machine import read_memory
    from magnitude_service.allocator.resources import ModelDemand, ModelResourceAllocator
    from magnitude_service.engine.cache_layout import CacheLayout, CacheType
    from magnitude_service.engine.native import scratch_bytes

    allocation = configuration.layer(AllocatorOptions)
    holding = configuration.layer(LoaderOptions)
    scheduling = configuration.layer(SchedulingOptions)
    demand = ModelDemand(
        name=model.spec.name,
        weights_bytes=model.spec.tensor_bytes,
        scratch_bytes=scratch_bytes(program, native),
        context_tokens=program.context_length,
        sequences_max=scheduling.sequences_max,
        layout=CacheLayout(program.cache, CacheType[allocation.cache_type.upper()]),
        weights_locked=holding.mlock or not holding.mmap,
    )
    allocator = ModelResourceAllocator(read_memory(), allocation)
    return allocator.plan(demand), allocator


def describe(configuration: config.Configuration) -> str:
    """What serving would cost, without serving: the text of `--dry-run`."""
    phases = Phases()
    loaded = load_model(configuration, phases)
    plan = loaded.plan
    with loaded.model as model:
        return "\n".join(
            (
                f"model      {model.spec.name} ({model.spec.architecture}), {model.model_id}",
                f"weights    {plan.weights_bytes:,} bytes, mapped{'' if plan.weights_fit else '; they do not all fit'}",
                f"cache      {plan.cache_bytes:,} bytes: {plan.pages_total} pages",
                f"context    {plan.context_tokens} tokens a request",
                f"scratch    {plan.scratch_bytes:,} bytes",
                f"process    {plan.process_bytes:,} bytes at most",
                f"budget     {plan.budget_bytes:,} bytes: {plan.bound}",
                f"threads    {loaded.threads}",
                f"start-up   {phases}",
            )
        )
