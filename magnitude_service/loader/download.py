"""One file over https, whole or not at all: resumed after a broken connection, and in the next run."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPMessage
from pathlib import Path
from typing import IO

from magnitude_service.errors import MagnitudeError, NotFoundError, UnavailableError
from magnitude_service.loader.sources import is_allowed_url

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 60.0
FAILURES_MAX = 5
"""Failures in a row, without one new byte between them, after which we give up."""
FIRST_PAUSE_SECONDS = 0.2
NO_MORE_BYTES = 416

Progress = Callable[[str, int, int | None], None]
"""Called with what is fetched, bytes so far, and bytes in total where known."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where we would have gone ourselves: never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not is_allowed_url(newurl):
            raise UnavailableError(
                f"{req.full_url} redirects to {newurl}, which is not https.",
                remedy="Use another source.",
                reason="DOWNLOAD_FAILED",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, partial: Path, progress: Progress, *, pause: Callable[[float], None] = time.sleep) -> None:
    """Fetches `url` into `partial`, going on from the bytes that are there, and again after a broken connection.

    Raises: NotFoundError (404), UnavailableError. OSError is the disk's.
    """
    opener = urllib.request.build_opener(_Redirects)
    failures = 0
    while True:
        before = _size(partial)
        try:
            if _download_rest(opener, url, partial, progress):
                break
        except urllib.error.HTTPError as error:
            with error:
                if error.code != NO_MORE_BYTES or not _size(partial):
                    raise _refused(url, error) from error
                partial.unlink()  # it is longer than the file is now: begin again
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            failures = 1 if _size(partial) > before else failures + 1
            if failures >= FAILURES_MAX:
                reason = getattr(error, "reason", error)
                raise UnavailableError(
                    f"{url} cannot be fetched: {reason}.",
                    remedy="Pull again: it goes on where it stopped.",
                    reason="DOWNLOAD_FAILED",
                ) from error
            pause(FIRST_PAUSE_SECONDS * 2**failures)
    _tag_file(partial).unlink(missing_ok=True)


def _refused(url: str, error: urllib.error.HTTPError) -> MagnitudeError:
    kind = NotFoundError if error.code in (404, 410) else UnavailableError
    remedy = "Check the address." if kind is NotFoundError else "Pull again later, or use another source."
    return kind(f"{url} answers {error.code} {error.reason}.", remedy=remedy, reason="DOWNLOAD_FAILED")


def _download_rest(opener: urllib.request.OpenerDirector, url: str, partial: Path, progress: Progress) -> bool:
    """Whether the file is whole now. Raises ConnectionError where the connection ended too early."""
    # Only a part whose version is known is continued: another version of the file must not be glued to it.
    tag_file = _tag_file(partial)
    tag = tag_file.read_text() if tag_file.is_file() else ""
    have = _size(partial) if tag else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-", "If-Range": tag} if have else {})
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if answer.status == 206 and not resumed:
            raise ConnectionError("the server sent another range than asked for")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with partial.open("ab" if resumed else "wb") as file:
            tag_file.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                progress(url, have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended after {have} of {total} bytes")
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _tag_file(partial: Path) -> Path:
    return partial.with_name(partial.name + ".etag")
