"""A session into SessionState and back, and what a saved one is worth here: the only file that knows both.

What comes back was written by whoever could write the file or call ImportState: every field is checked before a session
is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import ContextLengthError, IncompatibleVersionError, IntegrityError, PreconditionError
from magnitude_service.scheduling.session import Run, SavedPages, Session, TextState, TokenKind
from magnitude_service.server import limits
from magnitude_service.server.served_models import ModelDescription, PageDescription, ServedModel
from magnitude_service.server.state_store import SavedState
from magnitude_service.text.decoding import IncrementalDecoder

STATE_VERSION = 1
LAYOUT_VERSION = 1
ROUNDED = "~"
"""In Snapshot.cache_type: "f16~q8_0" was computed with f16 pages that grew from some which were converted from q8_0."""
TEMPLATE_TIME_SECONDS_END = 253_370_764_800
"""The year 9999: a calendar has no date behind it, in any time zone."""

BIT_EXACT = snapshot_pb2.RESTORE_FIDELITY_BIT_EXACT
RECOMPUTED = snapshot_pb2.RESTORE_FIDELITY_RECOMPUTED
APPROXIMATE = snapshot_pb2.RESTORE_FIDELITY_APPROXIMATE


class Restored(NamedTuple):
    """A session made of a saved version, and how near it is to that."""

    session: Session
    fidelity: snapshot_pb2.RestoreFidelity
    reason: str
    recomputed_tokens: int


def state_header(
    session: Session, model: ServedModel, description: ModelDescription, pages: PageDescription, pages_type: str
) -> snapshot_pb2.StateHeader:
    """What is saved of a session beside pages, of this cache type ("": none), and the application's bytes."""
    snapshot = snapshot_pb2.Snapshot(
        session_id=session.session_id,
        parent_version=session.version,
        model=model.name,
        model_id=description.model_id,
        content_sha256=model.content_sha256,
        token_count=session.settled,
        cache_type=ROUNDED.join(filter(None, (pages.cache_type, session.rounded_type))),
        instruction_set=pages.instruction_set,
        vocabulary_id=pages.vocabulary_id(),
    )
    return snapshot_pb2.StateHeader(
        snapshot=snapshot,
        session=session_state(session),
        page_layout=page_layout(pages, pages_type) if pages_type else None,
    )


def session_state(session: Session) -> snapshot_pb2.SessionState:
    """All that the next request goes on from."""
    tokens = session.tokens.tolist()
    return snapshot_pb2.SessionState(
        state_version=STATE_VERSION,
        token_ids=tokens,
        runs=[
            snapshot_pb2.TokenRun(kind=snapshot_pb2.TokenKind.Value(f"TOKEN_KIND_{kind.value}"), count=count)  # type: ignore[arg-type]
            for kind, count in session.runs
        ],
        sampler=snapshot_pb2.SamplerState(
            seed=session.seed or 0,
            draw=len(tokens),
            window=tokens[max(len(tokens) - session.window_tokens, 0) :] if session.window_tokens else (),
        ),
        decoder=snapshot_pb2.DecoderState(pending_bytes=session.text.pending, held_text=session.text.held),
        template_time_seconds=session.begin_seconds,
    )


def page_layout(pages: PageDescription, cache_type: str) -> snapshot_pb2.PageLayout:
    """The form of this model's pages in a cache type."""
    return snapshot_pb2.PageLayout(
        layout_version=LAYOUT_VERSION,
        layers=pages.layers,
        heads=pages.heads,
        head_size=pages.head_size,
        page_tokens=pages.page_tokens,
        cache_type=cache_type,
    )


def check_state(state: snapshot_pb2.SessionState, vocabulary_size: int, where: str = "session") -> None:
    """Raises IntegrityError for a state that no session of such a model can have, PreconditionError for one that this
    version of the server does not know."""
    if state.state_version != STATE_VERSION:
        _incompatible(f"{where}.state_version", state.state_version, f"{STATE_VERSION}")
    tokens = np.fromiter(state.token_ids, np.int64, len(state.token_ids))
    if (bad := np.flatnonzero(tokens >= vocabulary_size)).size:
        _wrong(f"{where}.token_ids[{bad[0]}]", tokens[bad[0]], f"below {vocabulary_size}")
    counted = sum(run.count for run in state.runs)
    if counted != tokens.size:
        _wrong(f"{where}.runs", f"of {counted} tokens", f"of {tokens.size}, as many as token_ids")
    for index, run in enumerate(state.runs):
        if run.kind not in (snapshot_pb2.TOKEN_KIND_PROMPT, snapshot_pb2.TOKEN_KIND_GENERATED):
            _wrong(f"{where}.runs[{index}].kind", run.kind, "PROMPT or GENERATED")
    window = list(state.sampler.window)
    if state.sampler.draw != tokens.size:
        _wrong(f"{where}.sampler.draw", state.sampler.draw, f"{tokens.size}, the number of tokens")
    if window and tokens[-len(window) :].tolist() != window:
        _wrong(f"{where}.sampler.window", f"{len(window)} other tokens", "the last of token_ids")
    for name in ("adapters", "cache_salt"):
        if getattr(state, name):
            _incompatible(f"{where}.{name}", "set", "sessions without it")
    if state.sampler.grammar_state:
        _incompatible(f"{where}.sampler.grammar_state", "set", "sessions without it")
    if len(state.decoder.held_text.encode()) > limits.STOP_STRING_BYTES_MAX:
        _wrong(f"{where}.decoder.held_text", f"{len(state.decoder.held_text)} characters", "part of a stop string")
    IncrementalDecoder(state.decoder.pending_bytes)  # raises where they begin no character
    if not 0 <= state.template_time_seconds < TEMPLATE_TIME_SECONDS_END:
        _wrong(f"{where}.template_time_seconds", state.template_time_seconds, f"0 … {TEMPLATE_TIME_SECONDS_END - 1}")


def check_pages(layout: snapshot_pb2.PageLayout, key_value_bytes: int, token_count: int, pages: PageDescription) -> int:
    """How many tokens the pages cover. Raises PreconditionError for a form that is not known, IntegrityError where
    their size is wrong."""
    row = pages.row_bytes(layout.cache_type, layout.head_size)
    if layout.layout_version != LAYOUT_VERSION:
        _incompatible("page_layout.layout_version", layout.layout_version, f"{LAYOUT_VERSION}")
    if layout.page_tokens != pages.page_tokens:  # positions would lie elsewhere
        _incompatible("page_layout.page_tokens", layout.page_tokens, f"{pages.page_tokens}")
    if layout.head_size and not row:
        _incompatible("page_layout.cache_type", repr(layout.cache_type[:20]), "f32, f16, bf16, q8_0 and q4_0")
    token_bytes = 2 * layout.layers * layout.heads * row
    covered, rest = divmod(key_value_bytes, token_bytes) if token_bytes else (0, key_value_bytes)
    if rest or covered > max(token_count - 1, 0):
        _wrong("key_value", f"{key_value_bytes} bytes", f"at most {max(token_count - 1, 0)} times {token_bytes} bytes")
    return covered


def check_page_values(layout: snapshot_pb2.PageLayout, content: NDArray[np.uint8], pages: PageDescription) -> None:
    """Raises IntegrityError for pages, right in form, that hold what nothing can have computed."""
    if problem := pages.problem_of(content, layout.cache_type, layout.cache_type):
        raise IntegrityError(
            f"The pages in key_value cannot be used: {problem}.",
            remedy="Export the state again, or import it without page_layout and key_value: tokens are then computed.",
            field="key_value",
        )


def restored(
    saved: SavedState,
    session_id: str,
    model: ServedModel,
    description: ModelDescription,
    pages: PageDescription,
    fidelity_min: int = 0,
) -> Restored:
    """A session of a saved version, in the nearest and then quickest way that this server has.

    *Raises*: PreconditionError MODEL_MISMATCH (other tokens), RESTORE_FIDELITY (less than `fidelity_min`),
    INCOMPATIBLE_VERSION; ContextLengthError; IntegrityError.
    """
    snapshot, state = saved.snapshot, saved.session
    _check_vocabulary(snapshot, description, pages, model)
    check_state(state, description.vocabulary_size)
    count = len(state.token_ids)
    if count >= description.context_tokens:
        raise ContextLengthError(
            f"The session has {count} tokens, but the context has {description.context_tokens}.",
            remedy="Serve with a larger --context-tokens.",
            session_tokens=count,
            context_tokens=description.context_tokens,
        )
    reason = _difference(snapshot, description, pages)
    usable, fidelity, reason = _pages(saved, count, reason, pages, fidelity_min)
    if fidelity_min and fidelity > fidelity_min:
        raise PreconditionError(
            f"The session can only be restored as {snapshot_pb2.RestoreFidelity.Name(fidelity)}: {reason}",
            remedy="Ask for less, or restore it where it was saved.",
            reason="RESTORE_FIDELITY",
            field="fidelity_min",
            session_id=snapshot.session_id,
        )
    session = Session(
        session_id,
        np.fromiter(state.token_ids, np.int32, count),
        _runs(state),
        seed=state.sampler.seed if count else None,
        window_tokens=len(state.sampler.window),
        text=TextState(state.decoder.pending_bytes, state.decoder.held_text),
        version=snapshot.version if session_id == snapshot.session_id else 0,
        saved_pages=usable,
        begin_seconds=state.template_time_seconds,
    )
    if usable is not None:
        rounded = snapshot.cache_type.partition(ROUNDED)[2]
        session.rounded_type = usable.cache_type if fidelity == APPROXIMATE else rounded
    if session_id != snapshot.session_id:
        session.origin = (snapshot.session_id, snapshot.version)
    return Restored(session, fidelity, reason, max(count - (usable.tokens if usable else 0), 0))


def _pages(
    saved: SavedState, count: int, reason: str, pages: PageDescription, fidelity_min: int
) -> tuple[SavedPages | None, snapshot_pb2.RestoreFidelity, str]:
    """The pages to load, how near that is, and why it is no nearer. `reason`: why another computation made them."""
    layout, content = saved.page_layout, saved.key_value
    computed_with, _, rounded = saved.snapshot.cache_type.partition(ROUNDED)
    found = None
    if content is not None and layout is not None and not reason:
        covered = check_pages(layout, content.nbytes, count, pages)
        if (layout.layers, layout.heads, layout.head_size) != (pages.layers, pages.heads, pages.head_size):
            _wrong("page_layout", "of other layers or heads", "that of the model which model_id names")
        found = SavedPages(content, covered, layout.cache_type, saved) if covered else None
    if not reason and computed_with and computed_with != pages.cache_type:
        reason = f"they were computed with {computed_with} pages, and this server has {pages.cache_type}."
    if found is not None and fidelity_min and not found.cache_type == pages.cache_type == computed_with:
        found = None  # converted pages would not do
    if found is not None and (problem := pages.problem_of(found.content, found.cache_type, pages.cache_type)):
        found, reason = None, f"their saved pages cannot be used: {problem}."
    if found is None and rounded and not reason:
        reason = f"they grew from pages that were converted from {rounded}, and now do not."
    if found is None:
        return None, RECOMPUTED if reason else BIT_EXACT, f"The tokens are computed again: {reason}" if reason else ""
    if found.cache_type == pages.cache_type == computed_with:
        return found, BIT_EXACT, ""
    return found, APPROXIMATE, f"The pages, saved as {found.cache_type}, are converted to {pages.cache_type}."


def _difference(snapshot: snapshot_pb2.Snapshot, description: ModelDescription, pages: PageDescription) -> str:
    """Why another computation made the session than this server's; empty where the same did."""
    if snapshot.model_id != description.model_id:
        return f"they were computed by another model file, {snapshot.model or 'without a name'}."
    found, ours = snapshot.instruction_set, pages.instruction_set
    if found not in pages.equal_instruction_sets:
        return f"they were computed by the arithmetic of {found or 'nobody knows what'}, and this server's is {ours}."
    return ""


def _check_vocabulary(
    snapshot: snapshot_pb2.Snapshot, description: ModelDescription, pages: PageDescription, model: ServedModel
) -> None:
    if snapshot.model_id == description.model_id or snapshot.vocabulary_id == pages.vocabulary_id():
        return
    named = f"the model {snapshot.model} ({snapshot.model_id[:16]}…)" if snapshot.model_id else "a model not named"
    raise PreconditionError(
        f"The session is of {named}, whose tokens are not those of {model.name}.",
        remedy="Serve that model; Get and ExportState give the application's own bytes all the same.",
        reason="MODEL_MISMATCH",
        session_id=snapshot.session_id,
        expected=snapshot.model_id,
        found=description.model_id,
    )


KINDS: Mapping[int, TokenKind] = {
    snapshot_pb2.TOKEN_KIND_PROMPT: TokenKind.PROMPT,
    snapshot_pb2.TOKEN_KIND_GENERATED: TokenKind.GENERATED,
}


def _runs(state: snapshot_pb2.SessionState) -> list[Run]:
    return [(KINDS[run.kind], run.count) for run in state.runs]


def _wrong(field: str, found: object, allowed: str) -> NoReturn:
    raise IntegrityError(
        f"The saved {field} is {found}; it must be {allowed}.",
        remedy="Restore another version of the session, or export this one again.",
        field=field,
    )


def _incompatible(field: str, found: object, known: str) -> NoReturn:
    raise IncompatibleVersionError(
        f"The saved {field} is {found}; this server knows {known}.",
        remedy="Use the version of the server that wrote it, or a later one.",
        field=field,
    )
