"""Text that remembers, character by character, whether it came from a request: used in the templates' child process.

Every character of a request's text is replaced by a *mark*, a code point that nobody writes, one for one:

    U+0000  … U+3FFFF    + 0x40000   ->  planes 4 to 7, which are unassigned
    U+E0000 … U+10FFFF   - 0x60000   ->  planes 8 to 10, which are unassigned
    U+40000 … U+DFFFF    a surrogate each, in the order in which they turn up; more than 2,048 of them: `ProvenanceLost`

A template then concatenates, slices and loops as it likes: marks travel with the text, because they *are* the text.
`Marked` is a `str` of marks (and of a template's own characters, where both were joined) that compares, searches and
splits as if its characters were the plain ones, so that `'</think>' in content` and `content.split('</think>')` work
as published templates expect. What it cannot follow exactly (`upper` of `ß`, `center`) comes back marked as a whole.

No operation turns a mark into a plain character. So forgetting the class on the way (a plain `str` full of marks) can
change what a template decides, but never makes a request's text look like the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

MARK_PATTERN = re.compile("[\U00040000-\U000dffff\ud800-\udfff]+")
SURROGATES = range(0xD800, 0xE000)


class ProvenanceLost(Exception):
    """A text cannot be marked; the caller treats everything as coming from the request."""


class _MarkTable(dict[int, int]):
    """Code point -> its mark, filled as needed."""

    def __missing__(self, code: int) -> int:
        if code < 0x40000:
            mark = code + 0x40000
        elif code >= 0xE0000:
            mark = code - 0x60000
        else:
            mark = SURROGATES.start + len(_unassigned)
            if mark not in SURROGATES:
                raise ProvenanceLost("more than 2,048 different unassigned characters")
            _unassigned[mark] = code
        self[code] = mark
        return mark


class _PlainTable(dict[int, int]):
    """Mark -> its code point; what is no mark stays."""

    def __missing__(self, code: int) -> int:
        if code in SURROGATES:
            return _unassigned.get(code, code)  # differs between requests, so it is not kept
        if 0x40000 <= code < 0x80000:
            plain = code - 0x40000
        elif 0x80000 <= code < 0xB0000:
            plain = code + 0x60000
        else:
            plain = code
        self[code] = plain
        return plain


_unassigned: dict[int, int] = {}
_MARKS = _MarkTable()
_PLAIN = _PlainTable()


def forget_unassigned() -> None:
    """Frees the surrogates for the next request's unassigned characters."""
    _unassigned.clear()
    _MARKS.clear()


def marked(value: Any) -> Any:
    """A plain value with every text in it marked, the keys of mappings included; numbers stay as they are."""
    if isinstance(value, str):
        return Marked(value.translate(_MARKS))
    if isinstance(value, Mapping):
        return {marked(key): marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item) for item in value]
    return value


def plain(value: Any) -> Any:
    """The value as it was before `marked`; texts come back as exact `str`."""
    if isinstance(value, Marked):
        return value._plain_text()
    if isinstance(value, str):
        return value.translate(_PLAIN) if MARK_PATTERN.search(value) else value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def has_marks(value: Any) -> bool:
    """Whether any text in the value holds a mark."""
    if isinstance(value, str):
        return MARK_PATTERN.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_marks(key) or has_marks(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(has_marks(item) for item in value)


def adopted(value: Any) -> Any:
    """A plain `str` that holds marks becomes a `Marked` again; everything else stays."""
    return Marked(value) if type(value) is str and MARK_PATTERN.search(value) else value


def joined(pieces: Iterable[str]) -> str:
    """`"".join`, for Jinja2 to build texts with: marks survive it, and so does the class."""
    text = adopted("".join(pieces))
    assert isinstance(text, str)
    return text


def untrusted_spans(text: str) -> list[tuple[int, int]]:
    """Where a rendered text holds marks, as (begin, end) in characters."""
    return [match.span() for match in MARK_PATTERN.finditer(text)]


class Marked(str):
    """A text with marks that behaves as if its characters were the plain ones. See the module.

    Its raw content is what `str`'s own methods see: `+`, `join`, slices and `%s` carry marks by themselves.
    """

    __slots__ = ("_plain_cache",)

    def _plain_text(self) -> str:
        try:
            return self._plain_cache  # type: ignore[has-type, no-any-return]
        except AttributeError:
            self._plain_cache = str.translate(self, _PLAIN)
            return self._plain_cache

    # Pieces of this text: slices of the raw content, at places found in the plain one.

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> Marked:
        return Marked(str.__getitem__(self, key))

    def __iter__(self) -> Iterator[Marked]:
        return map(Marked, str.__iter__(self))

    def _cut(self, pieces: Iterable[str], gap: int) -> list[Marked]:
        """The raw pieces where the plain ones follow each other, `gap` characters apart."""
        cut, begin = [], 0
        for piece in pieces:
            cut.append(self[begin : begin + len(piece)])
            begin += len(piece) + gap
        return cut

    def _find_each(self, pieces: Iterable[str]) -> list[Marked]:
        """The raw pieces where white space alone lies between the plain ones."""
        cut, end = [], 0
        for piece in pieces:
            begin = self._plain_text().index(piece, end)
            end = begin + len(piece)
            cut.append(self[begin:end])
        return cut

    def _split(self, pieces: list[str], sep: str | None) -> list[Marked]:
        return self._find_each(pieces) if sep is None else self._cut(pieces, len(sep))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Marked]:  # type: ignore[override]
        return self._split(self._plain_text().split(plain(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Marked]:  # type: ignore[override]
        return self._split(self._plain_text().rsplit(plain(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Marked]:  # type: ignore[override]
        lines = self._cut(self._plain_text().splitlines(True), 0)
        return lines if keepends else [line[: len(line._plain_text().splitlines()[0])] for line in lines]

    def partition(self, sep: str) -> tuple[Marked, Marked, Marked]:
        first, middle, last = self._cut(self._plain_text().partition(plain(sep)), 0)
        return first, middle, last

    def rpartition(self, sep: str) -> tuple[Marked, Marked, Marked]:
        first, middle, last = self._cut(self._plain_text().rpartition(plain(sep)), 0)
        return first, middle, last

    def lstrip(self, chars: str | None = None) -> Marked:
        return self[len(self) - len(self._plain_text().lstrip(plain(chars))) :]

    def rstrip(self, chars: str | None = None) -> Marked:
        return self[: len(self._plain_text().rstrip(plain(chars)))]

    def strip(self, chars: str | None = None) -> Marked:
        return self.rstrip(chars).lstrip(chars)

    def removeprefix(self, prefix: str, /) -> Marked:
        return self[len(prefix) if prefix and self.startswith(prefix) else 0 :]

    def removesuffix(self, suffix: str, /) -> Marked:
        return self[: len(self) - (len(suffix) if self.endswith(suffix) else 0)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Marked:
        if not old:
            return marked(self._plain_text().replace("", plain(new), count))  # type: ignore[no-any-return]
        return Marked(str.join(new, self.split(old, count)))

    # Building: marks of both sides stay.

    def __add__(self, other: str) -> Marked:
        return Marked(str.__add__(self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Marked:
        return Marked(str.__add__(other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Marked:
        return Marked(str.__mul__(self, count))

    __rmul__ = __mul__

    def __rmod__(self, other: str) -> Marked:
        return Marked(str.__mod__(other, self)) if isinstance(other, str) else NotImplemented

    def __mod__(self, values: Any) -> Marked:
        return marked(self._plain_text() % plain(values))  # type: ignore[no-any-return]

    def join(self, pieces: Iterable[str], /) -> Marked:
        return Marked(str.join(self, pieces))

    def translate(self, table: Any, /) -> Marked:
        return marked(self._plain_text().translate(table))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return marked(repr(self._plain_text()))  # type: ignore[no-any-return]

    # Asking: only plain characters count.

    def __hash__(self) -> int:
        return hash(self._plain_text())

    def __eq__(self, other: object) -> bool:
        return self._plain_text() == plain(other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return self._plain_text() != plain(other) if isinstance(other, str) else NotImplemented

    def __lt__(self, other: str) -> bool:
        return bool(self._plain_text() < plain(other)) if isinstance(other, str) else NotImplemented

    def __le__(self, other: str) -> bool:
        return bool(self._plain_text() <= plain(other)) if isinstance(other, str) else NotImplemented

    def __gt__(self, other: str) -> bool:
        return bool(self._plain_text() > plain(other)) if isinstance(other, str) else NotImplemented

    def __ge__(self, other: str) -> bool:
        return bool(self._plain_text() >= plain(other)) if isinstance(other, str) else NotImplemented

    def __contains__(self, part: object) -> bool:
        return plain(part) in self._plain_text()


QUESTIONS = (
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper"),
)
"""Methods whose answer is a number or a truth: asked of the plain text."""

CHANGES = (
    *("upper", "lower", "casefold", "capitalize", "title", "swapcase"),
    *("center", "ljust", "rjust", "zfill", "expandtabs"),
)
"""Methods that write new characters: each keeps its mark where the length stays, else all of them get one."""


def _question(name: str) -> Callable[..., Any]:
    ask = getattr(str, name)
    return lambda self, *arguments: ask(plain(self), *plain(arguments))


def _change(name: str) -> Callable[..., Marked]:
    change = getattr(str, name)

    def changed(self: Marked, *arguments: Any) -> Marked:
        before, after = self._plain_text(), change(plain(self), *plain(arguments))
        new: Marked = marked(after)
        if len(after) != len(before):
            return new
        pairs = zip(str.__iter__(self), before, after, str.__iter__(new), strict=True)
        return Marked("".join(text if raw == old else mark for raw, old, text, mark in pairs))

    return changed


for _name in QUESTIONS:
    setattr(Marked, _name, _question(_name))
for _name in CHANGES:
    setattr(Marked, _name, _change(_name))
