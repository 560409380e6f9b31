"""A session between its requests: tokens, where sampling and text stand, and its key/value pages.

A session has at most one holder, named by `holder`: a request, a save, a restore. Tokens, runs, seed and text are
changed by the holder alone, and by the engine thread while a request of the session is its. `pages` and `computed` are
the engine thread's; of a session that nobody holds it may take them under the table's lock.

    tokens   0 ───────────── settled ─────────────── tokens.size
             what counts     │ what a request added: `settle` keeps it, `roll_back` forgets it
    pages    0 ─── computed: never the last token, which the next request begins with
"""

from __future__ import annotations

import enum
from collections import abc
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_TOKENS: NDArray[np.int32] = np.empty(0, np.int32)
NO_PAGES: NDArray[np.int32] = np.empty(0, np.int32)


class TokenKind(enum.Enum):
    """How a token came to its place; names as in the contract."""

    PROMPT = "PROMPT"
    GENERATED = "GENERATED"


Run = tuple[TokenKind, int]
"""So many tokens in a row of one kind."""


@dataclass(frozen=True, slots=True)
class TextState:
    """Where the text of the last answer stands: bytes that may yet become a character, text that may yet become a stop
    string. Neither was shown."""

    pending: bytes = b""
    held: str = ""


NO_TEXT = TextState()


@dataclass(frozen=True, slots=True)
class SavedPages:
    """Pages of a saved version, in canonical form, that wait to be loaded at the session's next use.

    *Shapes*: content u8 [tokens * bytes of a position]. *Lifetime*: `owner` keeps the bytes from being given back when
    their version is deleted.
    """

    content: NDArray[np.uint8]
    tokens: int
    cache_type: str
    owner: object


class Session:
    """See the module."""

    __slots__ = (
        "begin_seconds",
        "computed",
        "holder",
        "is_saved",
        "origin",
        "pages",
        "rounded_type",
        "runs",
        "saved_pages",
        "seed",
        "session_id",
        "settled",
        "text",
        "tokens",
        "used_seconds",
        "version",
        "window_tokens",
    )

    def __init__(
        self,
        session_id: str,
        tokens: NDArray[np.int32] = NO_TOKENS,
        runs: abc.Iterable[Run] = (),
        *,
        seed: int | None = None,
        window_tokens: int = 0,
        text: TextState = NO_TEXT,
        version: int = 0,
        saved_pages: SavedPages | None = None,
        begin_seconds: int = 0,
    ) -> None:
        self.session_id = session_id
        self.tokens = tokens
        self.runs = list(runs)
        self.settled = int(tokens.size)
        self.seed = seed
        """Seed of the requests that name none; absent before the first one."""
        self.window_tokens = window_tokens
        """How far the penalties of the last request looked back."""
        self.text = text
        self.begin_seconds = begin_seconds
        """When it was begun, since 1970: the time that chat templates are told."""
        self.version = version
        """The version that it was saved as, or restored from, last; 0: none."""
        self.is_saved = version > 0
        """Whether it is what that version says."""
        self.origin: tuple[str, int] | None = None
        """Another session, and its version that this one is a copy of; until this one is saved."""
        self.saved_pages = saved_pages
        self.rounded_type = ""
        """Cache type that its pages, or some that they grew from, were converted from; "" too where it has no pages."""
        self.pages = NO_PAGES
        self.computed = 0
        self.holder = ""
        self.used_seconds = 0.0

    def settle(self, prompt_tokens: int, generated_kept: int, text: TextState) -> None:
        """A request has ended well: its prompt, and so many of the tokens that it generated, belong to the session."""
        self.runs = merged([*self.runs, (TokenKind.PROMPT, prompt_tokens), (TokenKind.GENERATED, generated_kept)])
        self.settled += prompt_tokens + generated_kept
        assert self.settled <= self.tokens.size, "more tokens are kept than there are"
        self.text, self.is_saved = text, False
        self._cut()

    def roll_back(self) -> None:
        """A request has failed: it leaves the session as it was."""
        self._cut()

    def _cut(self) -> None:
        self.tokens = self.tokens[: self.settled]
        self.computed = min(self.computed, max(self.settled - 1, 0))


def merged(runs: abc.Iterable[Run]) -> list[Run]:
    """The same tokens in as few runs as possible."""
    found: list[Run] = []
    for kind, count in runs:
        if found and found[-1][0] is kind:
            found[-1] = (kind, found[-1][1] + count)
        elif count:
            found.append((kind, count))
    return found
