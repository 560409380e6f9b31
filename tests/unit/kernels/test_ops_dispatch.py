"""Which tables a machine runs, how one is forced, and that constants are the same in both languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from magnitude_service import kernels
from magnitude_service.engine import batch
from magnitude_service.engine.options import ARITHMETIC_EDITION, EngineOptions, computed_by, equal_sources
from magnitude_service.errors import ConfigurationError
from magnitude_service.kernels import _kernels, reference, select_instruction_set, supported_instruction_sets

NAMES = ("avx512", "avx_vnni", "avx2", "amx", "neon_i8mm", "neon", "scalar")
"""Best first, then what only its name chooses, then the plain one."""


def test_tables_are_known_and_ordered_best_first_with_scalar_last():
    names = supported_instruction_sets()
    assert names == [name for name in NAMES if name in names]
    assert names[-1] == "scalar"


def test_the_best_table_is_taken_unless_one_is_forced():
    assert select_instruction_set("") == supported_instruction_sets()[0]
    for name in supported_instruction_sets():
        assert select_instruction_set(name) == name


FOREIGN = [name for name in NAMES if name not in supported_instruction_sets()]


@pytest.mark.parametrize("name", ["avx1024", "AVX2", "scalar ", *FOREIGN])
def test_a_table_that_the_machine_cannot_run_is_refused_with_those_that_it_can(name):
    with pytest.raises(ConfigurationError, match=name) as refusal:
        select_instruction_set(name)
    for supported in supported_instruction_sets():
        assert supported in refusal.value.remedy


def test_every_table_that_the_processor_and_the_system_offer_is_found():
    with open("/proc/cpuinfo") as cpuinfo:
        line = next((line for line in cpuinfo if line.startswith(("flags", "Features"))), "")
    flags = set(line.split())
    wanted = []
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
        wanted.append("avx512")
    if {"avx2", "fma", "f16c", "bmi2"} <= flags:
        wanted += [*(["avx_vnni"] if "avx_vnni" in flags else []), "avx2"]
    if "avx512" in wanted and {"amx_tile", "amx_int8"} <= flags:
        wanted.append("amx")
    if "asimddp" in flags:
        wanted += [*(["neon_i8mm"] if "i8mm" in flags else []), "neon"]
    assert supported_instruction_sets() == [*wanted, "scalar"]


def test_every_table_is_offered_and_has_the_bits_of_every_other_one():
    sources = Path(kernels.__file__).parent.joinpath("csrc").glob("*.cpp")
    found = [re.findall(r"^const Ops k(\w+)Ops = ", source.read_text(), re.M) for source in sources]
    tables = {name.lower() for names in found for name in names}
    equal = equal_sources("scalar")
    names = {source.removesuffix(f"/{ARITHMETIC_EDITION}") for source in equal}
    assert {name.replace("_", "") for name in names} == tables
    assert not names & equal, "a bare name is of a session of the first edition"
    for name in names:
        assert equal_sources(name) == equal
        assert computed_by(name) in equal
        assert EngineOptions(cpu_isa=name)
    assert equal_sources("reference") == {computed_by("reference")} == {"reference"}


def test_constants_agree_between_the_languages():
    assert _kernels.PAGE_TOKENS == batch.PAGE_TOKENS
    assert _kernels.BLOCK == reference.BLOCK
    assert _kernels.ACTIVATION_MAX == reference.ACTIVATION_MAX
