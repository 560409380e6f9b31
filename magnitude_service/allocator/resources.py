"""What a model will cost, before any of it is spent.

budget = a share of the smallest memory limit of this machine (machine.py)
├── process   interpreter, libraries, buffers of the server
├── scratch   activations and logits of the largest step
├── weights   mapped: the kernel may drop them and read them again, so that they count only while they fit
└── cache     key/value pages: what the options ask for, as far as the rest reaches
"""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.allocator.machine import MemoryLimit
from magnitude_service.allocator.options import AllocatorOptions
from magnitude_service.allocator.pages import PAGES_MAX, KeyValueCache, PagePool, pages_for
from magnitude_service.engine.batch import PAGE_TOKENS
from magnitude_service.engine.cache_layout import CacheLayout
from magnitude_service.errors import ConfigurationError, ExhaustedError

PROCESS_BYTES = 150 << 20
"""What the process may use beside pages and mapped weights (the design's "Small")."""

CONTEXT_TOKENS_MIN = 512
"""A context that the operator did not ask for is never cut below this: the model is refused instead."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """What one model asks for. `scratch_bytes` is read off its Program for the largest step; `weights_locked` weights
    cannot be dropped by the kernel (mlock, no mmap), and have to fit."""

    name: str
    weights_bytes: int
    scratch_bytes: int
    context_tokens: int
    sequences_max: int
    layout: CacheLayout
    weights_locked: bool = False


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """What a model gets. `context_tokens` is the longest prompt and answer together; `bound` names the memory limit.

    With `weights_fit` false the model works, but weights are read from disk again and again.
    """

    layout: CacheLayout
    context_tokens: int
    pages_total: int
    weights_bytes: int
    weights_fit: bool
    scratch_bytes: int
    process_bytes: int
    budget_bytes: int
    bound: str

    @property
    def cache_bytes(self) -> int:
        """All key/value pages."""
        return self.pages_total * self.layout.page_bytes

    @property
    def spent_bytes(self) -> int:
        """What cannot be dropped by the kernel once it is touched."""
        return self.process_bytes + self.scratch_bytes + self.cache_bytes


class ModelResourceAllocator:
    """Plans the memory of models within one budget, and gives out what was planned.

    Each `plan` sees what earlier `allocate`s left. One thread uses it.
    """

    def __init__(self, memory: MemoryLimit, options: AllocatorOptions) -> None:
        self._options = options
        self._bound = memory.bound
        self._spent_bytes = 0
        if options.budget_bytes is not None and options.budget_bytes > memory.available_bytes:
            raise ConfigurationError(
                f"budget_bytes is {options.budget_bytes}, but only {memory.available_bytes} bytes are free "
                f"({memory.bound}).",
                remedy="Lower budget_bytes, or raise that limit.",
                field="budget_bytes",
            )
        share = int(memory.available_bytes * options.memory_fraction)
        self.budget_bytes = share if options.budget_bytes is None else options.budget_bytes

    def plan(self, demand: ModelDemand) -> ResourcePlan:
        """What `demand` gets, without spending any of it.

        Raises: ConfigurationError, where the wanted context is beyond the model's; ExhaustedError, where the least
        that could work does not fit, with every number that is part of the sum.
        """
        options, page_bytes = self._options, demand.layout.page_bytes
        context = self._wanted_context(demand)
        least_tokens = context if options.context_tokens is not None else min(context, CONTEXT_TOKENS_MIN)
        least_bytes = pages_for(least_tokens) * page_bytes
        process_bytes = 0 if self._spent_bytes else PROCESS_BYTES  # the first model pays for the process
        left_bytes = self.budget_bytes - self._spent_bytes - process_bytes - demand.scratch_bytes
        weights_fit = left_bytes - demand.weights_bytes >= least_bytes
        if left_bytes < least_bytes or (demand.weights_locked and not weights_fit):
            raise self._exhausted(demand, process_bytes, least_tokens, least_bytes)
        cache_bytes = left_bytes - demand.weights_bytes if weights_fit else least_bytes
        wanted_pages = pages_for(context) * demand.sequences_max
        pages_total = min(wanted_pages, cache_bytes // page_bytes, PAGES_MAX)
        return ResourcePlan(
            demand.layout,
            min(context, pages_total * PAGE_TOKENS),
            pages_total,
            demand.weights_bytes,
            weights_fit,
            demand.scratch_bytes,
            process_bytes,
            self.budget_bytes,
            self._bound,
        )

    def allocate(self, plan: ResourcePlan) -> tuple[KeyValueCache, PagePool]:
        """The planned pages. Their memory is reserved as addresses; it is spent when a page is first written."""
        cache = KeyValueCache(plan.layout, plan.pages_total)
        self._spent_bytes += self._plan_bytes(plan)
        return cache, PagePool(plan.pages_total)

    def release(self, plan: ResourcePlan) -> None:
        """Gives back what `allocate` counted, after the model's cache is gone."""
        self._spent_bytes -= self._plan_bytes(plan)
        assert self._spent_bytes >= 0, "a plan was released twice"

    @staticmethod
    def _plan_bytes(plan: ResourcePlan) -> int:
        return plan.spent_bytes + (plan.weights_bytes if plan.weights_fit else 0)

    def _wanted_context(self, demand: ModelDemand) -> int:
        wanted = self._options.context_tokens
        if wanted is not None and wanted > demand.context_tokens:
            raise ConfigurationError(
                f"context_tokens is {wanted}, but {demand.name} was trained for {demand.context_tokens}.",
                remedy=f"Set context_tokens to {demand.context_tokens} or less, or leave it out.",
                field="context_tokens",
            )
        return wanted if wanted is not None else demand.context_tokens

    def _exhausted(
        self, demand: ModelDemand, process_bytes: int, least_tokens: int, least_bytes: int
    ) -> ExhaustedError:
        weights_bytes = demand.weights_bytes if demand.weights_locked else 0
        needed = self._spent_bytes + process_bytes + demand.scratch_bytes + least_bytes + weights_bytes
        other_models = f"{self._spent_bytes} for other models, " if self._spent_bytes else ""
        return ExhaustedError(
            f"{demand.name} needs {needed} bytes, but {self.budget_bytes} may be spent: {other_models}"
            f"{process_bytes} for the process, {demand.scratch_bytes} for activations, {least_bytes} for key/value "
            f"pages of {least_tokens} tokens{f', {weights_bytes} for locked weights' if weights_bytes else ''}. "
            f"The limit is {self._bound}.",
            remedy="Use a smaller context, F16 for the cache or fewer rows per step; raise memory_fraction or "
            "budget_bytes; or raise that limit.",
            reason="MEMORY_EXHAUSTED",
            needed_bytes=needed,
            budget_bytes=self.budget_bytes,
        )
