"""The table of character classes: what its generator says, and what the published patterns see."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Regex, pre_tokenizers

from magnitude_service.text import _text

CSRC = Path(__file__).parents[3] / "magnitude_service" / "text" / "csrc"  # an installed module lies elsewhere
GENERATED_SHA256 = "ba830e7f669dd0fcc40141409e2c8be621eead74b1d0d659dc89185f117d69c8"
CODE_POINTS = sys.maxunicode + 1
SURROGATES = range(0xD800, 0xE000)
CLASSES = _text.classes_of_code_points(CODE_POINTS)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_unicode_classes", CSRC / "generate_unicode_classes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_table_is_what_the_generator_writes() -> None:
    unicodedata2 = pytest.importorskip("unicodedata2", reason="the generator's source, unicodedata2==16.0.0")
    assert unicodedata2.unidata_version == _text.UNICODE_VERSION
    assert (CSRC / "unicode_classes.cpp").read_text() == generator().source(unicodedata2.category)


def test_the_compiled_table_and_the_generators_version_are_the_committed_ones() -> None:
    assert generator().UNICODE_VERSION == _text.UNICODE_VERSION
    assert hashlib.sha256(CLASSES).hexdigest() == GENERATED_SHA256


def test_the_interpreters_own_unicode_agrees_but_for_what_one_of_them_does_not_know_yet() -> None:
    """Python's version differs from ours; a character keeps its class once it is assigned."""
    other = generator().OTHER
    for code in range(CODE_POINTS):
        theirs = generator_class_of(code, unicodedata.category)
        is_assigned = unicodedata.category(chr(code)) != "Cn"
        assert CLASSES[code] == theirs or not is_assigned or CLASSES[code] == other, hex(code)


generator_class_of = generator().class_of


@pytest.mark.parametrize(("pattern", "kind"), [(r"\p{L}", 1), (r"\p{N}", 2), (r"\s", 3)])
def test_the_published_patterns_see_the_same_classes(pattern: str, kind: int) -> None:
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for first in range(0, CODE_POINTS, 4096):
        codes = [code for code in range(first, first + 4096) if code not in SURROGATES]
        kept = {character for piece, _ in split.pre_tokenize_str("".join(map(chr, codes))) for character in piece}
        for code in codes:
            assert (CLASSES[code] == kind) == (chr(code) not in kept), hex(code)
