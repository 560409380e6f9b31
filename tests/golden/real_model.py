"""A real model with its golden cases, and the executors that are measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magnitude_service.engine.architectures import record
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.engine.program import Program
from magnitude_service.engine.reference import ReferenceExecutor
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.golden.kl32 import Case, Executor, Measured, greedy_texts, measure, pages_needed, read_cases
from tests.support.steps import NanPool


@dataclass
class RealModel:
    """What is measured is computed when it is first asked for, once."""

    model: MappedModel
    cases: Sequence[Case]
    _references: dict[CacheType, ReferenceExecutor] = field(default_factory=dict)
    _measured: dict[tuple[str, CacheType, str], Measured] = field(default_factory=dict)
    _greedy: dict[tuple[str, CacheType, str], list[list[int]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, name: str) -> RealModel:
        """A model file with the cases of a golden file."""
        return cls(MMapModelLoader().load(path), read_cases(name))

    @property
    def program(self) -> Program:
        """As our architectures record it."""
        return record(self.model)

    def native(
        self, program: Program | None = None, cache_type: CacheType = CacheType.F32, isa: str = "", threads: int = 2
    ) -> NativeExecutor:
        """An executor with pages of its own, of the model's program or of a mutated one."""
        program = program or self.program
        pages = NanPool(program, cache_type, pages=pages_needed(self.cases))
        return NativeExecutor(program, self.model, pages, NativeOptions(threads=threads, isa=isa))

    def reference(self, cache_type: CacheType = CacheType.F32) -> ReferenceExecutor:
        """The float32 run; it is kept, because it keeps dequantised weights."""
        if cache_type not in self._references:
            pages = NanPool(self.program, cache_type, pages=pages_needed(self.cases))
            self._references[cache_type] = ReferenceExecutor(self.program, self.model, pages)
        return self._references[cache_type]

    def executor(self, kind: str, cache_type: CacheType = CacheType.F32, isa: str = "") -> Executor:
        """One of "native" and "reference"."""
        return self.reference(cache_type) if kind == "reference" else self.native(None, cache_type, isa)

    def measured(self, kind: str, cache_type: CacheType = CacheType.F32, isa: str = "") -> Measured:
        """The figures of an executor on all cases."""
        key = kind, cache_type, isa
        if key not in self._measured:
            self._measured[key] = measure(self.executor(*key), self.cases)
        return self._measured[key]

    def mutant(self, program: Program) -> Measured:
        """The figures of a program that is wrong in something."""
        return measure(self.native(program), self.cases)

    def greedy(self, kind: str, cache_type: CacheType = CacheType.F32, isa: str = "") -> list[list[int]]:
        """The greedy texts of an executor after all prompts."""
        key = kind, cache_type, isa
        if key not in self._greedy:
            self._greedy[key] = greedy_texts(self.executor(*key), self.cases)
        return self._greedy[key]
