"""Bearer tokens from a file, and who must show one.

A caller sends `authorization: Bearer TOKEN` with each call. The standard grpc.health.v1 needs none, since probes cannot
send any; everything else does, reflection too. Tokens themselves are kept nowhere: only their SHA-256 is, and what a
caller sends is compared with all of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from magnitude_service.errors import (
    ConfigurationError,
    MagnitudeError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from magnitude_service.server.watched_files import WatchedFiles, read_whole

OPEN_PREFIX = "/grpc.health.v1.Health/"
HEADER = "authorization"
SCHEME = "bearer"

TOKENS_MAX = 1_000
TOKEN_BYTES_MAX = 4_096
TOKEN_RULE = f"1 to {TOKEN_BYTES_MAX} visible ASCII characters without spaces, alone on its line"
FILE_BYTES_MAX = TOKENS_MAX * (TOKEN_BYTES_MAX + 1)

RELOAD_SECONDS = 1.0
"""How often the file is looked at, at most."""

logger = logging.getLogger("magnitude.server")


class Tokens:
    """The tokens of a file, read again when it changes. Used on the event loop."""

    def __init__(self, path: Path) -> None:
        """Reads them. Raises ConfigurationError where there are none."""
        self._path = path
        self._files = WatchedFiles([path], RELOAD_SECONDS)
        self._digests = parse_tokens(_read(path), str(path))

    def check(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Lets a call pass that shows a token, or needs none. Raises UnauthenticatedError (TOKEN_MISSING) and
        PermissionDeniedError (TOKEN_UNKNOWN)."""
        if method.startswith(OPEN_PREFIX):
            return
        self._reload()
        sent = [value for key, value in metadata if key == HEADER]
        scheme, _, token = (sent[0] if len(sent) == 1 and isinstance(sent[0], str) else "").partition(" ")
        if scheme.lower() != SCHEME or not token:
            raise UnauthenticatedError(
                "The call shows no bearer token.",
                remedy="Send it as metadata: `authorization: Bearer TOKEN`.",
                reason="TOKEN_MISSING",
            )
        digest, is_known = _digest(token.strip().encode("utf-8", "replace")), False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)  # all of them, so that the time says nothing
        if not is_known:
            raise PermissionDeniedError(
                "The call's bearer token is not one of this server's.",
                remedy="Ask the operator for a token.",
                reason="TOKEN_UNKNOWN",
            )

    def _reload(self) -> None:
        """Takes over a changed file. One that cannot be used leaves the tokens as they are, and is logged once."""
        if not self._files.have_changed():
            return
        try:
            if not self._path.is_file():  # to open a pipe would wait for its other end
                raise ConfigurationError(
                    f"The token file {self._path} is no regular file now.",
                    remedy="Put the file of tokens back in its place.",
                    field="token_file",
                )
            self._digests = parse_tokens(_read(self._path), str(self._path))
        except MagnitudeError as error:
            logger.error("the tokens stay as they were: %s", error)
        else:
            logger.info("%d tokens were read from %s", len(self._digests), self._path)


def is_token(line: bytes) -> bool:
    """Whether this can be a token: `TOKEN_RULE`."""
    return 0 < len(line) <= TOKEN_BYTES_MAX and all(0x21 <= byte <= 0x7E for byte in line)


def parse_tokens(data: bytes, source: str) -> tuple[bytes, ...]:
    """The SHA-256 of each line's token; empty lines count for nothing. Raises ConfigurationError, which never shows a
    token."""
    lines = [(number, line.strip()) for number, line in enumerate(data.split(b"\n"), 1)]
    found = [(number, line) for number, line in lines if line]
    for number, line in found:
        if not is_token(line):
            raise ConfigurationError(
                f"Line {number} of {source} is no token.", remedy=f"A token is {TOKEN_RULE}.", field="token_file"
            )
    if not found or len(found) > TOKENS_MAX:
        raise ConfigurationError(
            f"{source} has {len(found)} tokens; it must have 1 to {TOKENS_MAX}.",
            remedy="Write one token per line, for example from `openssl rand -hex 32`.",
            field="token_file",
        )
    return tuple(_digest(line) for _, line in found)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _read(path: Path) -> bytes:
    return read_whole(path, FILE_BYTES_MAX, "token_file")
