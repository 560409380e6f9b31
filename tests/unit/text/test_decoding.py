"""Bytes become text piece by piece, and the pieces are what decoding at once would have given."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from magnitude_service.errors import IntegrityError
from magnitude_service.text.decoding import PENDING_BYTES_MAX, IncrementalDecoder

FAMILY = "👨\u200d👩\u200d👧"
AWKWARD_BYTES = st.lists(
    st.sampled_from(
        [bytes([value]) for value in (0x00, 0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF)]
        + [bytes([value]) for value in (0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF)]
        + ["é".encode(), "漢".encode(), "😸".encode(), FAMILY.encode(), b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
    ),
    max_size=12,
).map(b"".join)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends)]


@given(AWKWARD_BYTES | st.binary(max_size=40), st.lists(st.integers(0, 1000), max_size=20))
@example(FAMILY.encode(), list(range(20)))
def test_streamed_text_is_the_text_decoded_at_once(data: bytes, cuts: list[int]) -> None:
    decoder = IncrementalDecoder()
    streamed = [decoder.push(piece) for piece in pieces(data, cuts)]
    assert "".join(streamed) + decoder.finish() == data.decode("utf-8", "replace")


@given(AWKWARD_BYTES | st.binary(max_size=40))
def test_every_prefix_shows_all_that_is_certain_and_nothing_else(data: bytes) -> None:
    """Certain is what both the shortest and any longer text would begin with; so at most one character is missing."""
    decoder = IncrementalDecoder()
    shown = decoder.push(data)
    assert len(decoder.pending) <= PENDING_BYTES_MAX
    assert shown == data[: len(data) - len(decoder.pending)].decode("utf-8", "replace")
    for continuation in (b"\x80", b"\x90", b"\xa0\x80", b"\x80\x80\x80", b"a", b""):
        assert (data + continuation).decode("utf-8", "replace").startswith(shown)
    if decoder.pending:
        completed = [
            second + rest for second in (b"\x80", b"\x90", b"\xa0", b"") for rest in (b"", b"\x80", b"\x80\x80")
        ]
        assert any("�" not in (decoder.pending + end).decode("utf-8", "replace") for end in completed)


@given(st.text())
def test_valid_text_byte_by_byte_never_shows_a_replacement_character(text: str) -> None:
    decoder = IncrementalDecoder()
    shown = "".join(decoder.push(bytes([value])) for value in text.encode())
    assert shown == text
    assert decoder.finish() == ""


@given(AWKWARD_BYTES, AWKWARD_BYTES)
def test_a_restored_decoder_goes_on_as_if_never_stopped(before: bytes, after: bytes) -> None:
    decoder = IncrementalDecoder()
    decoder.push(before)
    restored = IncrementalDecoder(decoder.pending)
    assert restored.push(after) + restored.finish() == decoder.push(after) + decoder.finish()


def test_a_cut_off_emoji_waits_and_becomes_one_replacement_character_at_the_end() -> None:
    decoder = IncrementalDecoder()
    assert decoder.push("😸".encode()[:3]) == ""
    assert decoder.pending == b"\xf0\x9f\x98"
    assert decoder.finish() == "�"
    assert decoder.pending == b""


def test_a_byte_that_can_never_complete_is_shown_at_once() -> None:
    decoder = IncrementalDecoder()
    assert decoder.push(b"\xff") == "�"
    assert decoder.push(b"\xf0\x9f") == ""
    assert decoder.push(b"A") == "�A"
    assert decoder.pending == b""


def test_an_overlong_or_surrogate_beginning_does_not_wait() -> None:
    assert IncrementalDecoder().push(b"\xe0\x80") == "��"
    assert IncrementalDecoder().push(b"\xed\xa0") == "��"
    assert IncrementalDecoder().push(b"\xf4\x90") == "��"


@pytest.mark.parametrize("pending", [b"a", b"\x80", b"\xf0\x9f\x98\xb8", b"\xff", b"\xe0\x80"])
def test_a_state_that_no_decoder_can_have_is_refused(pending: bytes) -> None:
    with pytest.raises(IntegrityError, match=f"undecoded bytes {pending.hex(' ')} do not begin"):
        IncrementalDecoder(pending)
