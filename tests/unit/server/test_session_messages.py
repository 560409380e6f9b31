"""What a saved session is worth here, and that nothing is made of one that no server can have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.engine.cache_rows import CacheType
from magnitude_service.errors import ContextLengthError, IntegrityError, MagnitudeError, PreconditionError
from magnitude_service.scheduling.session import Session, TextState, TokenKind
from magnitude_service.scheduling.session_table import taken
from magnitude_service.server.served_models import ModelDescription, PageDescription, ServedModel
from magnitude_service.server.session_messages import (
    APPROXIMATE,
    BIT_EXACT,
    RECOMPUTED,
    check_pages,
    check_state,
    page_layout,
    restored,
    state_header,
)

VOCABULARY = 300


def row_bytes(cache_type: str, head_size: int) -> int:
    return {"f16": 2, "f32": 4, "q8_0": 1}.get(cache_type, 0) * head_size


DESCRIPTION = ModelDescription("ab" * 32, "llama", "Q8_0", 1, 1, 100, 200, VOCABULARY)


def problem_of(content: np.ndarray, saved_type: str, cache_type: str) -> str:
    return "they hold a 255" if 255 in content else ""


PAGES = PageDescription(
    *(3, 2, 4, 32, "f16", "avx512", frozenset({"avx512", "scalar"})),
    vocabulary_id=lambda: "tokens",
    row_bytes=row_bytes,
    problem_of=problem_of,
)
TOKEN_BYTES = 2 * 3 * 2 * 4 * 2
MODEL = ServedModel("tiny")


@dataclass
class Saved:
    """A version as the store gives it."""

    snapshot: snapshot_pb2.Snapshot
    session: snapshot_pb2.SessionState
    page_layout: snapshot_pb2.PageLayout | None = None
    key_value: np.ndarray | None = None
    agent_state: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    parts: dict[str, object] = field(default_factory=dict)


def live() -> Session:
    return Session(
        "s",
        np.array([7, 8, 9, 10, 11], np.int32),
        [(TokenKind.PROMPT, 2), (TokenKind.GENERATED, 3)],
        seed=2**64 - 1,
        window_tokens=3,
        text=TextState(b"\xf0\x9f", "sto"),
        version=4,
        begin_seconds=1_700_000_000,
    )


def saved(with_pages: bool = True, pages_type: str = "f16") -> Saved:
    header = state_header(live(), MODEL, DESCRIPTION, PAGES, pages_type if with_pages else "")
    content = np.zeros(4 * 2 * 3 * 2 * row_bytes(pages_type, 4), np.uint8) if with_pages else None
    header.snapshot.version = 5
    return Saved(header.snapshot, header.session, header.page_layout if with_pages else None, content)


def test_a_session_comes_back_as_it_was_saved() -> None:
    found = restored(saved(), "s", MODEL, DESCRIPTION, PAGES)
    session, before = found.session, live()
    assert session.tokens.tolist() == before.tokens.tolist()
    for name in ("runs", "seed", "window_tokens", "text", "settled", "begin_seconds"):
        assert getattr(session, name) == getattr(before, name), name
    assert (session.version, session.is_saved, session.computed) == (5, True, 0)
    assert session.saved_pages is not None
    assert session.saved_pages.tokens == 4


def test_pages_to_load_hold_what_keeps_their_bytes() -> None:
    """The store gives the bytes of a deleted version back once nobody has the SavedState any more."""
    version = saved()
    session = restored(version, "s", MODEL, DESCRIPTION, PAGES).session
    assert session.saved_pages is not None
    assert session.saved_pages.owner is version


@pytest.mark.parametrize("cache_type", ["f16", "f32"])
def test_pages_of_what_nothing_can_have_computed_are_computed_again(cache_type: str) -> None:
    version = saved()
    assert version.key_value is not None
    version.key_value[7] = 255
    found = restored(version, "s", MODEL, DESCRIPTION, replace(PAGES, cache_type=cache_type))
    assert (found.fidelity, found.recomputed_tokens, found.session.saved_pages) == (RECOMPUTED, 5, None)
    assert "saved pages cannot be used: they hold a 255" in found.reason


def test_under_another_name_it_has_no_version_yet() -> None:
    session = restored(saved(), "copy", MODEL, DESCRIPTION, PAGES).session
    assert (session.version, session.is_saved) == (0, False)


def test_a_session_has_the_state_version_that_this_server_knows() -> None:
    state = saved().session
    assert (state.state_version, state.sampler.draw, list(state.sampler.window)) == (1, 5, [9, 10, 11])


@pytest.mark.parametrize(
    ("change", "with_pages", "least", "fidelity", "words", "recomputed"),
    [
        ({}, True, 0, BIT_EXACT, "", 1),
        ({}, False, 0, BIT_EXACT, "", 5),
        ({"instruction_set": "scalar"}, True, BIT_EXACT, BIT_EXACT, "", 1),
        (
            {"instruction_set": "reference", "equal_instruction_sets": frozenset({"reference"})},
            *(True, 0, RECOMPUTED, "arithmetic of avx512", 5),
        ),
        ({"cache_type": "f32"}, True, 0, APPROXIMATE, "saved as f16, are converted to f32", 1),
        ({"cache_type": "f32"}, True, RECOMPUTED, RECOMPUTED, "computed with f16", 5),
        ({"cache_type": "f32"}, False, 0, RECOMPUTED, "f16 pages", 5),
    ],
)
def test_how_near_a_restore_is_and_why_it_is_no_nearer(
    change: dict[str, Any], with_pages: bool, least: int, fidelity: int, words: str, recomputed: int
) -> None:
    found = restored(saved(with_pages), "s", MODEL, DESCRIPTION, replace(PAGES, **change), least)
    assert (found.fidelity, found.recomputed_tokens) == (fidelity, recomputed)
    assert bool(found.reason) == (fidelity != BIT_EXACT)
    assert words in found.reason


def test_rounded_pages_are_near_and_what_they_are_of_is_computed_again_where_that_will_not_do() -> None:
    version = saved(pages_type="q8_0")
    found = restored(version, "s", MODEL, DESCRIPTION, PAGES)
    assert (found.fidelity, found.recomputed_tokens) == (APPROXIMATE, 1)
    assert "saved as q8_0" in found.reason
    found = restored(version, "s", MODEL, DESCRIPTION, PAGES, BIT_EXACT)
    assert (found.fidelity, found.recomputed_tokens, found.reason) == (BIT_EXACT, 5, "")


def test_what_grew_from_converted_pages_says_so_for_as_long_as_it_has_pages() -> None:
    session = restored(saved(pages_type="q8_0"), "s", MODEL, DESCRIPTION, PAGES).session
    assert session.rounded_type == "q8_0"
    header = state_header(session, MODEL, DESCRIPTION, PAGES, "f16")
    assert header.snapshot.cache_type == "f16~q8_0"
    version = saved()
    version.snapshot.cache_type = "f16~q8_0"
    found = restored(version, "s", MODEL, DESCRIPTION, PAGES)
    assert (found.fidelity, found.session.rounded_type) == (BIT_EXACT, "q8_0")
    version.key_value = None
    found = restored(version, "s", MODEL, DESCRIPTION, PAGES)
    assert (found.fidelity, found.session.rounded_type) == (RECOMPUTED, "")
    taken(session)
    assert state_header(session, MODEL, DESCRIPTION, PAGES, "").snapshot.cache_type == "f16"


def test_another_model_file_of_the_same_tokens_computes_them_again() -> None:
    other = replace(DESCRIPTION, model_id="cd" * 32)
    found = restored(saved(), "s", MODEL, other, PAGES)
    assert (found.fidelity, found.recomputed_tokens, found.session.saved_pages) == (RECOMPUTED, 5, None)
    assert "another model file, tiny" in found.reason
    with pytest.raises(PreconditionError) as caught:
        restored(saved(), "s", MODEL, other, PAGES, BIT_EXACT)
    assert caught.value.reason == "RESTORE_FIDELITY"


def test_a_model_of_other_tokens_is_refused_by_name() -> None:
    other = replace(DESCRIPTION, model_id="cd" * 32)
    with pytest.raises(PreconditionError, match="tiny") as caught:
        restored(saved(), "s", MODEL, other, replace(PAGES, vocabulary_id=lambda: "others"))
    assert caught.value.reason == "MODEL_MISMATCH"


def test_a_session_longer_than_the_context_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextLengthError, match="5 tokens, but the context has 5"):
        restored(saved(), "s", MODEL, replace(DESCRIPTION, context_tokens=5), PAGES)


def changed(change: Callable[[snapshot_pb2.SessionState], object]) -> snapshot_pb2.SessionState:
    state = saved().session
    change(state)
    return state


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("token_ids[0]", lambda state: state.token_ids.__setitem__(0, VOCABULARY)),
        ("runs", lambda state: state.token_ids.append(1)),
        ("runs", lambda state: state.runs.pop()),
        ("runs[1].kind", lambda state: setattr(state.runs[1], "kind", 0)),
        ("runs[0].kind", lambda state: setattr(state.runs[0], "kind", 77)),
        ("sampler.draw", lambda state: setattr(state.sampler, "draw", 6)),
        ("sampler.window", lambda state: state.sampler.window.append(3)),
        ("sampler.window", lambda state: state.sampler.window.extend([1] * 50)),
        ("held_text", lambda state: setattr(state.decoder, "held_text", "x" * 5000)),
        ("undecoded bytes", lambda state: setattr(state.decoder, "pending_bytes", b"\xff\xff")),
        ("undecoded bytes", lambda state: setattr(state.decoder, "pending_bytes", b"x" * 9)),
        ("template_time_seconds", lambda state: setattr(state, "template_time_seconds", -1)),
        ("template_time_seconds", lambda state: setattr(state, "template_time_seconds", 2**62)),
    ],
)
def test_a_state_that_nobody_can_have_saved_is_damaged(words: str, change: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        check_state(changed(change), VOCABULARY)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        lambda state: setattr(state, "state_version", 2),
        lambda state: state.adapters.update({"a": 1.0}),
        lambda state: setattr(state, "cache_salt", "x"),
        lambda state: setattr(state.sampler, "grammar_state", b"x"),
    ],
)
def test_a_state_of_a_later_server_is_refused_and_not_half_understood(change: Any) -> None:
    with pytest.raises(PreconditionError) as caught:
        check_state(changed(change), VOCABULARY)
    assert caught.value.reason == "INCOMPATIBLE_VERSION"


@pytest.mark.parametrize(
    ("change", "size", "kind"),
    [
        ({}, TOKEN_BYTES * 5, IntegrityError),
        ({}, TOKEN_BYTES - 1, IntegrityError),
        ({"layers": 0}, TOKEN_BYTES, IntegrityError),
        ({"layout_version": 2}, TOKEN_BYTES, PreconditionError),
        ({"cache_type": "q3"}, TOKEN_BYTES, PreconditionError),
        ({"page_tokens": 16}, TOKEN_BYTES, PreconditionError),
    ],
)
def test_pages_of_a_wrong_size_or_form_are_refused(
    change: dict[str, Any], size: int, kind: type[MagnitudeError]
) -> None:
    layout = saved().page_layout
    assert layout is not None
    for name, value in change.items():
        setattr(layout, name, value)
    with pytest.raises(kind) as caught:
        check_pages(layout, size, 5, PAGES)
    assert isinstance(caught.value, IntegrityError) or f"page_layout.{name} is {value!r}" in caught.value.message


def test_a_cache_type_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(PreconditionError) as caught:
        check_pages(page_layout(PAGES, "q3"), 0, 5, PAGES)
    assert all(kind.name.lower() in caught.value.message for kind in CacheType)


def test_pages_of_other_layers_under_the_same_model_are_damage() -> None:
    version = saved()
    assert version.page_layout is not None
    version.page_layout.layers, version.page_layout.heads = 2, 3
    with pytest.raises(IntegrityError, match="layers or heads"):
        restored(version, "s", MODEL, DESCRIPTION, PAGES)
