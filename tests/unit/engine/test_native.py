"""The native executor against itself: company, threads, chunking and instruction set change no bit of a result."""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from magnitude_service.engine import architectures
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.compilation import compile_program
from magnitude_service.engine.native import NativeExecutor, NativeOptions, scratch_bytes
from magnitude_service.engine.phases import Add, GatedActivation, Norm
from magnitude_service.engine.program import Instruction, Op, Program
from magnitude_service.kernels import supported_instruction_sets
from tests.support.steps import VOCABULARY, NanPool, Part, page_table, prompt, step_plan, tiny_model
from tests.support.tiny_models import TENSOR_TYPES


def executor(
    tensor_type: str = "Q4_1",
    *,
    architecture: str = "llama",
    cache_type: CacheType = CacheType.F16,
    **options: object,
) -> NativeExecutor:
    model = tiny_model(tensor_type, architecture)
    program = architectures.record(model)
    settings = NativeOptions(**{"threads": 2, "rows_max": 1024, **options})  # type: ignore[arg-type]
    return NativeExecutor(program, model, NanPool(program, cache_type), settings)


def chunked_logits(
    native: NativeExecutor, tokens: NDArray[np.int32], chunks: list[int], first: int
) -> NDArray[np.float32]:
    """Logits of every position of a prompt that is computed in chunks of the given sizes."""
    pages, position, parts = page_table(len(tokens), first), 0, []
    for size in chunks:
        logits = native.logits(step_plan(Part(tokens[position : position + size], position, pages)))
        assert logits is not None
        parts.append(logits)
        position += size
    assert position == len(tokens)
    return np.concatenate(parts)


def unfused(program: Program) -> Program:
    """The same program, but each result is read once more, for nothing: no phase can take over what computes it."""
    instructions: list[Instruction] = []
    buffers = dict(program.buffers)
    for instruction in program.instructions:
        instructions.append(instruction)
        (output,) = instruction.outputs
        if instruction.op in (Op.NORM, Op.GATED_ACTIVATION, Op.MATMUL) and output not in ("q", "k", "v"):
            unused = f"unused {output}"
            buffers[unused] = buffers[output]
            instructions.append(Instruction(Op.ADD, (output, output), (unused,), layer=instruction.layer))
    return dataclasses.replace(program, buffers=buffers, instructions=tuple(instructions))


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES)
def test_every_instruction_set_gives_the_same_bits(tensor_type: str, architecture: str) -> None:
    tokens = prompt(40, seed=1)
    results = {}
    for isa in supported_instruction_sets():
        native = executor(tensor_type, architecture=architecture, isa=isa)
        assert native.isa == isa
        results[isa] = chunked_logits(native, tokens, [37, 1, 1, 1], first=3)
    assert np.isfinite(results["scalar"]).all()
    for isa in results:
        assert results[isa].tobytes() == results["scalar"].tobytes(), isa


@pytest.mark.parametrize("cache_type", CacheType)
def test_threads_change_no_bit(cache_type: CacheType) -> None:
    tokens = prompt(700, seed=2)
    expected = chunked_logits(executor(threads=1, cache_type=cache_type), tokens, [699, 1], first=0)
    for threads in (2, 3):
        native = executor(threads=threads, cache_type=cache_type)
        assert chunked_logits(native, tokens, [699, 1], first=5).tobytes() == expected.tobytes(), threads


@pytest.mark.parametrize("tensor_type", ["Q4_1", "Q6_K", "F16"])
def test_chunking_of_a_prompt_changes_no_bit(tensor_type: str) -> None:
    tokens = prompt(600, seed=3)
    native = executor(tensor_type)
    expected = chunked_logits(native, tokens, [600], first=0)
    for chunks in ([1] * 20 + [580], [256, 256, 88], [31, 1, 33, 500, 35], [599, 1]):
        assert chunked_logits(native, tokens, chunks, first=20).tobytes() == expected.tobytes(), chunks


def test_company_changes_no_bit() -> None:
    native = executor()
    mine, position = prompt(300, seed=4), 290
    pages = page_table(300, first=0)
    chunked_logits(native, mine[:position], [position], first=0)
    alone = native.logits(step_plan(Part(mine[position:], position, pages)))
    assert alone is not None
    others = [Part(prompt(50 + i, seed=50 + i), 0, page_table(50 + i, first=10 + 4 * i)) for i in range(6)]
    company = native.logits(step_plan(*others[:3], Part(mine[position:], position, pages), *others[3:]))
    assert company is not None
    begin = sum(len(rows.tokens) for rows in others[:3])
    assert company[begin : begin + len(alone)].tobytes() == alone.tobytes()


def test_each_step_of_a_batch_equals_the_sequence_alone() -> None:
    native, solo = executor(), executor(threads=1)
    prompts = [prompt(size, seed=60 + size) for size in (1, 31, 33, 260, 7)]
    tables = [page_table(len(tokens) + 8, first=12 * i) for i, tokens in enumerate(prompts)]
    texts = [list(tokens) for tokens in prompts]
    begun = [0] * len(prompts)
    for _ in range(6):
        rows = [
            Part(np.array(text[begin:], np.int32), begin, pages)
            for text, begin, pages in zip(texts, begun, tables, strict=True)
        ]
        chosen = native.step(step_plan(*rows, all_rows=False))
        assert chosen is not None
        for index, part in enumerate(rows):
            alone = solo.step(step_plan(part, all_rows=False))
            assert alone is not None
            assert alone.token[0] == chosen.token[index]
            assert alone.logprob[0].tobytes() == chosen.logprob[index].tobytes()
            begun[index] = len(texts[index])
            texts[index].append(int(alone.token[0]))


@pytest.mark.parametrize("count", [1, 9, 40])
def test_fusion_changes_no_bit(count: int) -> None:
    tokens = prompt(count, seed=11)
    expected = chunked_logits(executor(), tokens, [count], first=0)
    model = tiny_model("Q4_1")
    program = unfused(architectures.record(model))
    assert {Norm, Add, GatedActivation} <= {type(phase) for phase in compile_program(program).phases}
    native = NativeExecutor(program, model, NanPool(program, CacheType.F16), NativeOptions(threads=2))
    assert chunked_logits(native, tokens, [count], first=0).tobytes() == expected.tobytes()


def test_scratch_is_known_before_the_executor_is_built() -> None:
    for threads, rows_max in ((1, 64), (2, 512), (4, 2048)):
        native = executor(threads=threads, rows_max=rows_max)
        promised = scratch_bytes(native.program, native.options)
        assert native.workspace_bytes <= promised <= 1.5 * native.workspace_bytes + (1 << 20)


def anonymous_bytes() -> int:
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_scratch_is_no_memory_before_a_thread_that_computes_writes_it() -> None:
    """So that it lies where the system puts what that thread touches first, and large batches that never come cost
    nothing."""
    before = anonymous_bytes()
    native = executor(rows_max=1 << 17)
    scratch = native.workspace_bytes
    assert scratch > 256 << 20
    assert anonymous_bytes() - before < scratch // 16
    native.logits(step_plan(Part(prompt(60, seed=5), 0, page_table(60, first=0))))
    assert anonymous_bytes() - before < scratch // 16


def test_only_the_rows_asked_for_get_logits() -> None:
    native = executor()
    rows = Part(prompt(60, seed=5), 0, page_table(60, first=0))
    everything = native.logits(step_plan(rows))
    last = native.logits(step_plan(rows, all_rows=False))
    assert everything is not None
    assert last is not None
    assert last.shape == (1, VOCABULARY)
    assert last[0].tobytes() == everything[-1].tobytes()


def test_an_aborted_step_gives_nothing_and_the_next_one_is_whole() -> None:
    native = executor()
    step = step_plan(Part(prompt(40, seed=6), 0, page_table(40, first=0)))
    expected = native.logits(step)
    assert expected is not None
    native.abort()
    assert native.step(step) is None
    again = native.logits(step)
    assert again is not None
    assert again.tobytes() == expected.tobytes()


def test_a_step_runs_without_the_interpreter_lock_and_can_be_aborted_meanwhile() -> None:
    native = executor(isa="scalar", threads=1)
    step = step_plan(Part(prompt(1000, seed=10), 0, page_table(1000, first=0)))
    begun, results = threading.Event(), []

    def run() -> None:
        begun.set()
        results.append(native.step(step))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that nobody gets the lock who is not given it
    try:
        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        native.abort()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == [None]


def test_an_exported_page_continues_the_sequence_elsewhere() -> None:
    native = executor()
    layout = native.cache.layout
    tokens, old, new = prompt(70, seed=8), page_table(70, first=0), page_table(70, first=40)
    chunked_logits(native, tokens[:69], [69], first=0)
    buffer = native.cache.buffer
    for source, target, count in zip(old, new, (32, 32, 5), strict=True):
        layout.import_page(buffer, target, layout.export_page(buffer, source, count))
    expected = native.logits(step_plan(Part(tokens[69:], 69, old)))
    moved = native.logits(step_plan(Part(tokens[69:], 69, new)))
    assert expected is not None
    assert moved is not None
    assert moved.tobytes() == expected.tobytes()
