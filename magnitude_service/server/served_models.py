"""The models of this server as its servicers see them: what `app` puts in, and the state that callers meet.

`app` makes a ServedModel LOADING, then calls `ready`, `drain` or `fail`; the servicers only read. Each change is one
assignment, so that a reader on another thread sees the old state or the new one.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from magnitude_service.errors import MagnitudeError, NotFoundError, PreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from magnitude_service.scheduling.load import Load
    from magnitude_service.scheduling.request import Request
    from magnitude_service.scheduling.session import Session
    from magnitude_service.scheduling.session_table import SessionTable
    from magnitude_service.server.state_store import StateStore

LOADING_RETRY_SECONDS = 1.0
DRAINING_RETRY_SECONDS = 5.0
HASHING_RETRY_SECONDS = 5.0

SPELT_TOKENS_MAX = 16_384


class Engine(Protocol):
    """What runs requests; scheduling/engine_thread.py. Any thread may call it."""

    sessions: SessionTable

    def page_token_bytes(self, cache_type: str = "") -> int: ...
    def export_pages(
        self,
        session: Session,
        target: NDArray[np.uint8],
        on_done: Callable[[MagnitudeError | None], None],
        cache_type: str = "",
    ) -> None: ...
    def submit(self, request: Request) -> None: ...
    def finish(self, request_id: str, choice: int, generated_kept: int) -> None: ...
    def abort(self, request_id: str) -> object: ...
    def load(self) -> Load: ...


class Tokenizer(Protocol):
    """Text to ids and back; text/tokenizer.py. Any thread may call it, and it gives up the interpreter lock."""

    vocabulary_size: int
    bos_id: int | None
    eog_ids: frozenset[int]

    @property
    def token_bytes_max(self) -> int: ...
    def encode(self, text: bytes | str, *, parse_special: bool, add_special: bool = False) -> NDArray[np.int32]: ...
    def encode_segments(
        self, segments: Iterable[tuple[bytes | str, bool]], *, add_special: bool = False
    ) -> NDArray[np.int32]: ...
    def decode(self, ids: ArrayLike, *, render_special: bool = False) -> bytes: ...
    def token_bytes(self, id: int, *, render_special: bool = False) -> bytes: ...


class Segment(Protocol):
    """A piece of a rendered chat; only a trusted one may name control tokens."""

    @property
    def text(self) -> str: ...
    @property
    def trusted(self) -> bool: ...


class ChatTemplate(Protocol):
    """Writes a chat down; text/templates.py. Blocks for as long as the child renders."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] | None = None,
        now: datetime | None = None,
    ) -> Sequence[Segment]: ...


class ModelState(enum.Enum):
    """Where a model is in its life; names as in the contract."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What is known of a model once its header is parsed. Sizes in tokens unless named otherwise."""

    model_id: str
    architecture: str
    weight_type: str
    parameter_count: int
    file_bytes: int
    context_tokens: int
    trained_context_tokens: int
    vocabulary_size: int
    chat_template: str = ""
    running_requests_max: int = 0
    waiting_requests_max: int = 0


@dataclass(frozen=True, slots=True)
class PageDescription:
    """What the key/value pages of a session depend on; names as in the contract."""

    layers: int
    heads: int
    head_size: int
    page_tokens: int
    cache_type: str
    instruction_set: str
    equal_instruction_sets: frozenset[str]
    """Those whose results have the same bits as that one's."""
    vocabulary_id: Callable[[], str]
    """SHA-256 of the model's tokens; computed at the first call."""
    row_bytes: Callable[[str, int], int]
    """Bytes of one head's keys or values at one position, by cache type and head size; 0 for an unknown type."""
    problem_of: Callable[[NDArray[np.uint8], str, str], str]
    """Why pages of one cache type cannot be loaded into pages of another, or the same; "" where they can."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a READY model computes with. `template` is absent where the file has none; without `pages` and `states`
    sessions live, and cannot be saved."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    pages: PageDescription | None = None
    states: StateStore | None = None
    spell: Callable[[int], bytes] = field(init=False, repr=False)
    """The bytes of a token, control tokens by their names; remembered, since log-probabilities name many."""

    def __post_init__(self) -> None:
        spell = functools.partial(self.tokenizer.token_bytes, render_special=True)
        object.__setattr__(self, "spell", functools.lru_cache(SPELT_TOKENS_MAX)(spell))


class ServedModel:
    """One model: its name, its state, and, once they are known, its description and runtime."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ModelState.LOADING
        self.progress = 0.0  # while LOADING: 0…1
        self.failure: MagnitudeError | None = None
        self.description: ModelDescription | None = None
        self.content_sha256 = ""  # until it is known
        self.runtime: Runtime | None = None

    def ready(self, description: ModelDescription, runtime: Runtime) -> None:
        """The model serves from now on."""
        self.description, self.runtime, self.progress = description, runtime, 1.0
        self.state = ModelState.READY

    def drain(self) -> None:
        """Nothing new is accepted; what runs goes on."""
        if self.state is not ModelState.FAILED:
            self.state = ModelState.DRAINING

    def fail(self, error: MagnitudeError) -> None:
        """The model cannot serve; its requests get `error`."""
        self.failure = error
        self.state = ModelState.FAILED

    def open(self) -> tuple[ModelDescription, Runtime]:
        """What a new request needs. Raises UnavailableError while the model loads or drains, its failure after."""
        if self.state is ModelState.READY and self.description and self.runtime:
            return self.description, self.runtime
        if self.state is ModelState.FAILED and self.failure is not None:
            raise self.failure
        if self.state is ModelState.DRAINING:
            raise UnavailableError(
                f"Model {self.name} is draining: the server stops, or the model is being taken away.",
                remedy="Ask another server, or again later.",
                reason="DRAINING",
                retry_after_seconds=DRAINING_RETRY_SECONDS,
                model=self.name,
            )
        raise UnavailableError(
            f"Model {self.name} is still loading: {self.progress:.0%} is done.",
            remedy="Ask again in a moment; HealthService.Health tells the progress.",
            retry_after_seconds=LOADING_RETRY_SECONDS,
            model=self.name,
        )

    def expect(self, model_id: str, content_sha256: str) -> None:
        """Raises PreconditionError unless the model is the expected one, UnavailableError while its hash is unknown.
        What is "" is not expected."""
        found = self.description.model_id if self.description else ""
        if model_id and model_id.lower() != found:
            raise self._mismatch("expected_model_id", model_id, found)
        if content_sha256 and not self.content_sha256:
            raise UnavailableError(
                f"The content hash of model {self.name} is still being computed.",
                remedy="Ask again in a moment, or serve with --verify.",
                reason="CONTENT_HASH_PENDING",
                retry_after_seconds=HASHING_RETRY_SECONDS,
                model=self.name,
            )
        if content_sha256 and content_sha256.lower() != self.content_sha256:
            raise self._mismatch("expected_content_sha256", content_sha256, self.content_sha256)

    def _mismatch(self, field: str, expected: str, found: str) -> PreconditionError:
        return PreconditionError(
            f"{field} is {expected[:64]}, but model {self.name} has {found}.",
            remedy="Ask a server of the expected model, or expect this one.",
            reason="MODEL_MISMATCH",
            field=field,
            expected=expected,
            found=found,
        )


class ServedModels:
    """All models by name, the default one first."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def default(self) -> ServedModel | None:
        """The model of requests that name none."""
        return next(iter(self), None)

    def find(self, name: str) -> ServedModel:
        """The model of that name; "" is the default one. Raises NotFoundError."""
        model = self._models.get(name) if name else self.default
        if model is None:
            raise NotFoundError(
                f"There is no model {name!r} here." if name else "No model is loaded.",
                remedy=f"Models: {', '.join(self._models) or 'none'}.",
                reason="MODEL_NOT_FOUND",
                model=name,
            )
        return model
