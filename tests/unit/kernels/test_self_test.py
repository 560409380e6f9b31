"""The self-test of a table: what it covers, what it finds in a broken one, and what is computed with then."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from magnitude_service import kernels
from magnitude_service.errors import ConfigurationError
from magnitude_service.kernels import _kernels, select_instruction_set

OPS_H = Path(kernels.__file__).parent / "csrc" / "ops.h"
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
TABLES = _kernels.supported_tables()
AUTOMATIC = [table for table in TABLES if table != "amx"]
BEST = TABLES[0]
FAULTS = {
    "add": "add gives other bits than the plain kernels",
    "matmul F32": "matmul F32 gives other bits than the plain kernels",
    "matmul Q4_K": "matmul Q4_K died by signal 11 (Segmentation fault)",
    "matmul Q6_K": "matmul Q6_K gives other bits than the plain kernels",
    "silu_multiply": "silu_multiply died by signal 4 (Illegal instruction)",
    "attention_finish": "attention_finish died by signal 24 (CPU time limit exceeded)",
}
"""What the test module can break in a table (a wrong bit, a stray read, an entry that is not there, an instruction that
does not exist, a loop without an end), and what is said of it."""

needs_vectors = pytest.mark.skipif(len(TABLES) < 2, reason="this machine runs the plain kernels only")


def run_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_entry_of_the_table_is_compared_for_every_type():
    struct = OPS_H.read_text(encoding="utf-8").split("struct Ops {")[1].split("\n};")[0]
    entries = set(re.findall(r"\(\*(\w+)", struct))
    sizes_and_layouts = {"quantized_row_bytes", "matmul_scratch_bytes", "attention_scratch_bytes", "quantize"}
    compared = _kernels.self_test.comparisons()
    assert len(compared) == len(set(compared))
    # Quantised activations have a layout of each table's own: products show them.
    assert {name.split()[0].replace("dequantize", "dequantize_row") for name in compared} == entries - sizes_and_layouts
    for entry in ("matmul", "dequantize"):
        assert [name for name in compared if name.split()[0] == entry] == [f"{entry} {type_}" for type_ in TYPES]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_of_this_machine_passes(table):
    assert _kernels.self_test.select_table(table, {}) == (table, [])


@needs_vectors
@pytest.mark.parametrize("entry", FAULTS)
def test_a_broken_table_gives_way_to_the_next_slower_one(entry):
    assert _kernels.self_test.select_table("", {BEST: entry}) == (TABLES[1], [(BEST, FAULTS[entry])])


@needs_vectors
def test_the_plain_kernels_are_left_when_every_other_table_is_broken():
    chosen, findings = _kernels.self_test.select_table("", dict.fromkeys(TABLES[:-1], "add"))
    assert chosen == "scalar"
    assert findings == [(table, FAULTS["add"]) for table in AUTOMATIC[:-1]]


@needs_vectors
def test_a_table_that_only_its_name_chooses_is_never_the_automatic_choice():
    untimed = {BEST: "by name only"}
    assert _kernels.self_test.select_table("", untimed) == (TABLES[1], [])
    assert _kernels.self_test.select_table(BEST, untimed) == (BEST, [])


@needs_vectors
def test_a_forced_table_that_is_broken_is_refused_with_what_was_found(monkeypatch, caplog):
    broken = {BEST: "silu_multiply"}
    monkeypatch.setattr(_kernels, "select_table", lambda forced: _kernels.self_test.select_table(forced, broken))
    with pytest.raises(ConfigurationError, match="silu_multiply died by signal 4") as refusal:
        select_instruction_set(BEST)
    assert refusal.value.details["field"] == "cpu_isa"
    assert select_instruction_set("scalar") == "scalar"


@needs_vectors
def test_a_table_that_is_not_used_is_logged_once_by_name_with_what_failed(monkeypatch, caplog):
    broken = {BEST: "add"}
    monkeypatch.setattr(_kernels, "select_table", lambda forced: _kernels.self_test.select_table(forced, broken))
    kernels._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        assert [select_instruction_set("") for _ in range(3)] == [TABLES[1]] * 3
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for part in (BEST, FAULTS["add"], TABLES[1]):
        assert part in record.getMessage()


@needs_vectors
def test_each_table_is_tried_once_in_a_process():
    child = run_child(
        """
        import resource, sys
        from magnitude_service.kernels import _kernels
        first = _kernels.select_table("")
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        assert before > 0
        assert [_kernels.select_table("") for _ in range(3)] == [first] * 3
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt == before
        print(first)
        """
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == str((BEST, []))


@needs_vectors
def test_without_memory_for_the_child_the_table_is_used_untried_and_that_is_said():
    child = run_child(
        """
        import logging, resource
        from magnitude_service.kernels import select_instruction_set
        logging.basicConfig(format="%(levelname)s %(message)s")
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
        print(select_instruction_set(""))
        """
    )
    assert child.stdout.strip() == BEST
    assert child.stderr.startswith(f"WARNING Kernels {BEST} are used untried: no child process to try it in: ")


@needs_vectors
def test_a_fault_in_the_child_runs_no_handler_of_a_process_that_has_them():
    child = run_child(
        """
        import faulthandler, signal
        from magnitude_service.kernels import _kernels
        faulthandler.enable()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)   # the child's end is then nobody's to ask for
        print(_kernels.self_test.select_table("", {_kernels.supported_tables()[0]: "matmul Q4_K"}))
        """
    )
    assert child.returncode == 0
    assert child.stderr == ""
    assert child.stdout.strip() == str((TABLES[1], [(BEST, "matmul Q4_K ended the child process")]))


@needs_vectors
def test_a_process_with_busy_threads_may_be_forked_for_it():
    child = run_child(
        """
        import threading
        from magnitude_service.kernels import _kernels

        stop = threading.Event()

        def allocate():
            while not stop.is_set():
                bytearray(200_000), [str(i) for i in range(1000)]

        threads = [threading.Thread(target=allocate) for _ in range(3)]
        for thread in threads:
            thread.start()
        results = [_kernels.self_test.select_table("", {}) for _ in range(40)]
        stop.set()
        for thread in threads:
            thread.join()
        print(set(map(str, results)))
        """
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == str({str((BEST, []))})
