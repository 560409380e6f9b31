"""Bytes of tokens become text as they arrive, and never half a character.

A token is bytes; a character may be spread over several tokens. Joined, the pieces that `push` and `finish` return are
exactly `b"".join(all).decode("utf-8", "replace")`: what can no longer become a character is U+FFFD, once for each
maximal invalid part as Unicode recommends, and a beginning that may still be completed waits.
"""

from __future__ import annotations

from magnitude_service.errors import IntegrityError

PENDING_BYTES_MAX = 3
"""A UTF-8 character has at most four bytes, and with the fourth it is no longer pending."""

CONTINUATION = range(0x80, 0xC0)

LEADS: dict[int, tuple[int, range]] = {
    **dict.fromkeys(range(0xC2, 0xE0), (2, CONTINUATION)),
    **dict.fromkeys(range(0xE1, 0xF0), (3, CONTINUATION)),
    **dict.fromkeys(range(0xF1, 0xF4), (4, CONTINUATION)),
    0xE0: (3, range(0xA0, 0xC0)),  # below: an overlong form of two bytes
    0xED: (3, range(0x80, 0xA0)),  # above: a surrogate
    0xF0: (4, range(0x90, 0xC0)),  # below: an overlong form of three bytes
    0xF4: (4, range(0x80, 0x90)),  # above: beyond U+10FFFF
}
"""First byte -> length of the character, and which second bytes it allows. *Source*: Unicode 16.0, table 3-7."""


class IncrementalDecoder:
    """Turns one answer's bytes into text. `pending` is its whole state: a session keeps it and gives it back."""

    def __init__(self, pending: bytes = b"") -> None:
        """*Raises*: IntegrityError when `pending` is not the beginning of one character."""
        if pending and _pending_length(pending) != len(pending):
            raise IntegrityError(
                f"The saved undecoded bytes {pending[:8].hex(' ')} do not begin a UTF-8 character.",
                remedy="Restore an earlier version of the session.",
                field="pending",
            )
        self._pending = bytes(pending)

    @property
    def pending(self) -> bytes:
        """The beginning of a character that is not complete yet: 0 to 3 bytes."""
        return self._pending

    def push(self, data: bytes) -> str:
        """The text that is certain now; it may be empty."""
        data = self._pending + data
        whole = len(data) - _pending_length(data)
        self._pending = data[whole:]
        return data[:whole].decode("utf-8", "replace")

    def finish(self) -> str:
        """What is left: "" or, where a character was cut off, U+FFFD. Then the decoder is as new."""
        rest, self._pending = self._pending, b""
        return rest.decode("utf-8", "replace")


def _pending_length(data: bytes) -> int:
    """How many bytes at the end begin a character that further bytes may complete."""
    for length in range(1, min(PENDING_BYTES_MAX, len(data)) + 1):
        lead, *rest = data[-length:]
        if lead in LEADS:
            size, second = LEADS[lead]
            is_open = length < size and (not rest or rest[0] in second)
            return length if is_open else 0
        if lead not in CONTINUATION:
            return 0
    return 0
