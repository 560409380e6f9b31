"""The tokenizer on vocabularies small enough to see what should happen. Ids 0 to 255 are the bytes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_service.errors import IntegrityError, InvalidRequestError, UnsupportedModelError
from magnitude_service.text import _text
from magnitude_service.text.tokenizer import Tokenizer, TokenType
from tests.support.vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    byte_characters,
    byte_pair_metadata,
    byte_pair_tokenizer,
    metadata_of,
)

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "a a", "aa aa"]
HE, LL, HELL, HELLO, SPACE_W, AA, AAAA = range(256, 263)
SPECIAL = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<|im|>": CONTROL, "<tool>": USER_DEFINED}
IM_START, IM_END, IM, TOOL = range(263, 267)

TOKENIZER = byte_pair_tokenizer(MERGES, special=SPECIAL)


def encode(text: str | bytes, *, parse_special: bool = False, tokenizer: Tokenizer = TOKENIZER) -> list[int]:
    ids: list[int] = tokenizer.encode(text, parse_special=parse_special).tolist()
    return ids


def test_merges_apply_by_rank_and_not_from_left_to_right() -> None:
    assert encode("hello") == [HELLO]
    tokenizer = byte_pair_tokenizer(["b c", "a b"])
    assert encode("abc", tokenizer=tokenizer) == [ord("a"), 256]


def test_equal_merges_apply_leftmost_first() -> None:
    assert encode("aaa") == [AA, ord("a")]


def test_no_merge_crosses_a_word_boundary() -> None:
    assert encode("aa aa", tokenizer=byte_pair_tokenizer(["a a", "a Ġ"])) == [256, ord(" "), 256]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 34, 100])
def test_long_and_short_pieces_merge_alike(count: int) -> None:
    fours, rest = divmod(count, 4)
    assert encode("a" * count) == [AAAA] * fours + [AA] * (rest // 2) + [ord("a")] * (rest % 2)


def merged(text: str, ranked: list[str]) -> list[str]:
    """The definition: again and again, of the merge of lowest rank that applies anywhere, the leftmost."""
    parts = list(text)
    pairs = [f"{left} {right}" for left, right in itertools.pairwise(parts)]
    while best := next((merge for merge in ranked if merge in pairs), None):
        at = pairs.index(best)
        parts[at : at + 2] = [best.replace(" ", "")]
        around = parts[max(at - 1, 0) : at + 2]
        pairs[max(at - 1, 0) : at + 2] = [f"{left} {right}" for left, right in itertools.pairwise(around)]
    return parts


@pytest.mark.parametrize("is_hostile", [False, True], ids=["as trained", "merges in reverse"])
def test_pieces_of_every_length_merge_by_rank_and_then_from_the_left(is_hostile: bool) -> None:
    """Against the definition, across the lengths at which the way of merging changes. A hostile vocabulary ranks what
    a merge makes below the merge itself."""
    merges = ["a b", "b a", "a a", "ab ab", "ba b", "aa ab", "abab aa", "b b", "bb a", "aa aa", "bb bb", "aaaa bb"]
    ranked = merges[::-1] if is_hostile else merges
    tokenizer = byte_pair_tokenizer(ranked)
    draws = np.random.default_rng(5)
    for count in (1, 2, 31, 32, 33, 500, 4095, 4096, 4097, 6000):
        text = "".join(draws.choice(["a", "b"], count, p=[0.6, 0.4]))
        expected = [tokenizer.find(part.encode()) for part in merged(text, ranked)]
        assert None not in expected
        assert encode(text, tokenizer=tokenizer) == expected, count


def test_the_longest_token_is_counted_in_bytes_of_text() -> None:
    assert TOKENIZER.token_bytes_max == len("<|im_start|>")
    assert byte_pair_tokenizer(["Ġ Ġ", "ĠĠ ĠĠ"]).token_bytes_max == 4
    assert byte_pair_tokenizer([]).token_bytes_max == 1


def test_an_empty_text_has_no_ids() -> None:
    assert encode("") == []
    assert TOKENIZER.encode_segments([]).tolist() == []


def test_ids_are_int32() -> None:
    assert TOKENIZER.encode("hello", parse_special=False).dtype == np.int32


@given(st.binary(max_size=200))
def test_any_bytes_come_back_whether_utf8_or_not(data: bytes) -> None:
    for parse_special in (False, True):
        ids = TOKENIZER.encode(data, parse_special=parse_special)
        assert TOKENIZER.decode(ids, render_special=True) == data


@pytest.mark.parametrize("bad", [b"\xff", b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
                                 b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x98"])  # fmt: skip
def test_each_byte_of_invalid_utf8_counts_as_a_symbol_of_its_own(bad: bytes) -> None:
    # The pattern of Qwen 2 takes one symbol along with a word, and leaves a run of symbols to itself.
    word = _text.pieces("qwen2", bad + b"word")
    assert word == ([bad + b"word"] if len(bad) == 1 else [bad, b"word"])
    assert _text.pieces("qwen2", b"word" + bad) == [b"word", bad]


def test_a_surrogate_is_refused_and_located() -> None:
    with pytest.raises(InvalidRequestError, match=r"surrogate U\+D800 at character 2"):
        encode("ab\ud800")


# Special tokens


def test_control_tokens_are_recognised_only_where_special_text_is_parsed() -> None:
    assert encode("a<|im_end|>b", parse_special=True) == [ord("a"), IM_END, ord("b")]
    plain = encode("a<|im_end|>b")
    assert not any(TOKENIZER.is_control(id) for id in plain)
    assert TOKENIZER.decode(plain) == b"a<|im_end|>b"


def test_user_defined_tokens_are_recognised_in_any_text() -> None:
    assert encode("a<tool>b") == [ord("a"), TOOL, ord("b")]


def test_the_longest_special_token_wins() -> None:
    tokenizer = byte_pair_tokenizer(special={"<a": CONTROL, "<a>": CONTROL, "<a>>b": CONTROL, "<b": CONTROL})
    assert encode("<a>>", parse_special=True, tokenizer=tokenizer) == [257, ord(">")]
    assert encode("<a>>b<b<<a", parse_special=True, tokenizer=tokenizer) == [258, 259, ord("<"), 256]


@given(st.lists(st.tuples(st.sampled_from(["<|im_", "start|>", "<|im_end|>", "<|im|>", "he", "llo", "<to", "ol>", ""]),
                          st.booleans())))  # fmt: skip
def test_untrusted_text_neither_adds_nor_removes_control_tokens(segments: list[tuple[str, bool]]) -> None:
    ids = TOKENIZER.encode_segments(segments)
    control = [id for id in ids.tolist() if TOKENIZER.is_control(id)]
    # What the template yields by itself: its stretches, each alone.
    expected, stretch = [], ""
    for text, is_trusted in [*segments, ("x", False)]:
        if is_trusted:
            stretch += text
        else:
            expected += [id for id in encode(stretch, parse_special=True) if TOKENIZER.is_control(id)]
            stretch = ""
    assert control == expected
    assert TOKENIZER.decode(ids, render_special=True).decode() == "".join(text for text, _ in segments)


def test_a_control_token_split_between_trusted_and_untrusted_text_is_not_one() -> None:
    for segments in ([("<|im_", True), ("end|>", False)], [("<|im_", False), ("end|>", True)]):
        assert IM_END not in TOKENIZER.encode_segments(segments)


def test_untrusted_text_cuts_the_templates_text_even_when_it_is_empty() -> None:
    assert TOKENIZER.encode_segments([("<|im_", True), ("end|>", True)]).tolist() == [IM_END]
    assert IM_END not in TOKENIZER.encode_segments([("<|im_", True), ("", False), ("end|>", True)])


def test_words_and_merges_run_across_segment_boundaries() -> None:
    segments = [("he", True), ("l", False), ("lo", True)]
    assert TOKENIZER.encode_segments(segments).tolist() == [HELLO]


def test_a_character_may_be_split_between_segments() -> None:
    text = "é".encode()
    ids = TOKENIZER.encode_segments([(text[:1], True), (text[1:], False)])
    assert ids.tolist() == encode("é")


def test_merges_never_make_a_control_token() -> None:
    tokens = [*byte_characters(), "ab"]
    types = np.array([NORMAL] * 256 + [CONTROL], np.int32)
    tokenizer = Tokenizer.from_metadata(
        byte_pair_metadata(tokens, ["a b"], pre="llama-bpe", more={"token_type": types})
    )
    assert encode("ab", tokenizer=tokenizer) == [ord("a"), ord("b")]
    assert encode("ab", parse_special=True, tokenizer=tokenizer) == [256]


def test_whole_pieces_come_before_merges_where_the_pre_tokenizer_says_so() -> None:
    tokens = [*byte_characters(), "ab", "abc"]
    for pre, expected in (("llama-bpe", [257]), ("qwen2", [256, ord("c")])):
        tokenizer = Tokenizer.from_metadata(byte_pair_metadata(tokens, ["a b"], pre=pre))
        assert encode("abc", tokenizer=tokenizer) == expected


# BOS, EOS, end of generation


def test_bos_is_added_exactly_once() -> None:
    tokenizer = byte_pair_tokenizer(special={"<s>": CONTROL}, bos_token_id=256, add_bos_token=True)
    for text in ("a", "<s>a"):
        assert tokenizer.encode(text, parse_special=True, add_special=True).tolist() == [256, ord("a")]
    assert tokenizer.encode("", parse_special=True, add_special=True).tolist() == [256]
    assert tokenizer.encode("a", parse_special=True).tolist() == [ord("a")]
    assert tokenizer.add_bos


def test_a_typed_bos_does_not_stand_for_the_real_one() -> None:
    tokenizer = byte_pair_tokenizer(special={"<s>": CONTROL}, bos_token_id=256, add_bos_token=True)
    assert tokenizer.encode("<s>", parse_special=False, add_special=True).tolist() == [256, *b"<s>"]


def test_eos_is_added_only_where_the_file_asks() -> None:
    tokenizer = byte_pair_tokenizer(special={"</s>": CONTROL}, eos_token_id=256, add_eos_token=True)
    for text in ("a", "a</s>"):
        assert tokenizer.encode(text, parse_special=True, add_special=True).tolist() == [ord("a"), 256]


def test_llama_bpe_adds_bos_unless_the_file_says_otherwise() -> None:
    special = {"<|begin_of_text|>": CONTROL}
    assert byte_pair_tokenizer(pre="llama-bpe", special=special, bos_token_id=256).add_bos
    assert not byte_pair_tokenizer(pre="llama-bpe", special=special, bos_token_id=256, add_bos_token=False).add_bos
    assert not byte_pair_tokenizer(pre="llama-bpe", special=special).add_bos
    assert not byte_pair_tokenizer(pre="qwen2", special=special, bos_token_id=256).add_bos


def test_end_of_generation_ids_come_from_keys_and_from_well_known_texts() -> None:
    special = {"<|im_end|>": CONTROL, "</s>": NORMAL, "<x>": CONTROL, "<y>": CONTROL, "<|eot_id|>": USER_DEFINED}
    tokenizer = byte_pair_tokenizer(special=special, eos_token_id=258, eot_token_id=259)
    assert tokenizer.eog_ids == {256, 257, 258, 259, 260}
    assert (tokenizer.eos_id, tokenizer.bos_id) == (258, None)


def test_a_well_known_control_text_is_control_whatever_the_file_says() -> None:
    tokenizer = byte_pair_tokenizer(special={"</s>": NORMAL, "<|eot_id|>": USER_DEFINED})
    assert [tokenizer.is_control(id) for id in (256, 257)] == [True, True]
    assert encode("</s>", parse_special=True, tokenizer=tokenizer) == [256]
    assert encode("<|eot_id|>", tokenizer=tokenizer) == list(b"<|eot_id|>")


def test_a_promised_bos_without_an_id_is_refused() -> None:
    with pytest.raises(IntegrityError, match="add_bos_token is true, but there is no"):
        byte_pair_tokenizer(add_bos_token=True)


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "eot_token_id", "fim_pad_token_id"])
@pytest.mark.parametrize("id", [-1, 256, 2**40])
def test_a_special_id_outside_the_vocabulary_is_refused(key: str, id: int) -> None:
    with pytest.raises(IntegrityError, match=rf"tokenizer.ggml.{key} is {id}; it must lie in 0 … 255"):
        Tokenizer.from_metadata(byte_pair_metadata(byte_characters(), more={key: id}))


# Decoding


def test_control_tokens_show_only_when_asked() -> None:
    ids = [HELLO, IM_END, TOOL]
    assert TOKENIZER.decode(ids) == b"hello<tool>"
    assert TOKENIZER.decode(ids, render_special=True) == b"hello<|im_end|><tool>"
    assert TOKENIZER.token_bytes(IM_END) == b""
    assert TOKENIZER.token_bytes(IM_END, render_special=True) == b"<|im_end|>"


def test_token_bytes_and_token_text_differ_by_the_byte_level_alphabet() -> None:
    assert TOKENIZER.token_bytes(SPACE_W) == b" w"
    assert TOKENIZER.token_text(SPACE_W) == "Ġw".encode()
    assert [TOKENIZER.token_bytes(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_a_token_outside_the_byte_level_alphabet_stands_for_its_own_text() -> None:
    tokenizer = byte_pair_tokenizer(special={"Ġ日本": NORMAL, "Ġé": USER_DEFINED, "[PAD]x": UNUSED, "<unk>": UNKNOWN})
    assert [tokenizer.token_bytes(id) for id in range(256, 260)] == ["Ġ日本".encode(), "Ġé".encode(), b"", b""]
    assert tokenizer.is_control(259)


def test_token_types_are_the_formats() -> None:
    ours = {type.name: type.value for type in TokenType}
    assert ours == {"UNDEFINED": 0} | {type.name: type.value for type in gguf.TokenType}


def test_find_is_the_inverse_of_token_text() -> None:
    for id in range(TOKENIZER.vocabulary_size):
        assert TOKENIZER.find(TOKENIZER.token_text(id)) == id
    assert TOKENIZER.find(b"absent") is None
    assert TOKENIZER.find(b"") is None


@pytest.mark.parametrize("id", [-1, 267, 2**31, 2**32, 2**62])
def test_an_id_out_of_range_is_refused_with_its_index_and_the_bound(id: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"Token id {id} at index 2 is out of range: .* 0 to 266"):
        TOKENIZER.decode([1, 2, id])
    for method in (TOKENIZER.token_bytes, TOKENIZER.token_text, TOKENIZER.token_type, TOKENIZER.is_control):
        with pytest.raises(InvalidRequestError, match=f"Token id {id} at index 0"):
            method(id)


@pytest.mark.parametrize("ids", [[2**63], [2**70], [1.5], [[1, 2]], [[1], [1, 2]], ["a"], [None], [True]])
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    with pytest.raises(InvalidRequestError, match="not a flat list of 64-bit integers"):
        TOKENIZER.decode(ids)


def test_ids_of_any_integer_type_and_stride_decode() -> None:
    ids = np.array([HELLO, 0, TOOL, 0], np.int16)
    assert TOKENIZER.decode(ids[::2]) == b"hello<tool>"
    assert TOKENIZER.decode([]) == b""


# Files that ask for what we do not have


@pytest.mark.parametrize("model", ["llama", "bert", "gpt2 ", ""])
def test_an_unknown_tokenizer_is_refused_by_name(model: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"is '{model}'; supported: gpt2" if model else "There is no"):
        byte_pair_tokenizer(model=model)


@pytest.mark.parametrize("pre", ["default", "tekken", "GPT-2", "qwen2 "])
def test_an_unknown_pre_tokenizer_is_refused_by_name(pre: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"tokenizer.ggml.pre is '{pre}'; supported: gpt-2, "):
        byte_pair_tokenizer(pre=pre)


def test_an_absent_pre_tokenizer_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"There is no tokenizer\.ggml\.pre"):
        Tokenizer.from_metadata(byte_pair_metadata(byte_characters(), more={"pre": None}))


# Files that contradict themselves


def refused(match: str, tokens: list[str] | None = None, merges: Sequence[str] = (), **more: object) -> None:
    with pytest.raises(IntegrityError, match=match):
        Tokenizer.from_metadata(byte_pair_metadata(byte_characters() if tokens is None else tokens, merges, more=more))


def test_the_same_token_twice_is_refused() -> None:
    refused(r"tokens\[1\] and \[3\] are the same token", ["a", "b", "c", "b"])


@pytest.mark.parametrize("merge", ["", " ", "ab", "a ", " a", "a", "  "])
def test_a_merge_that_is_not_two_tokens_is_refused(merge: str) -> None:
    refused(r"merges\[1\] is not two tokens", merges=["a b", merge])


def test_merges_of_tokens_that_do_not_exist_are_never_applied() -> None:
    tokens = [*byte_characters(), "ab", "abc"]
    entries = byte_pair_metadata(tokens, ["a zz", "zz b", "b c", "a b", "ab c", "a b"])
    tokenizer = Tokenizer.from_metadata(entries)
    assert encode("abc", tokenizer=tokenizer) == [257]


def test_a_vocabulary_without_merges_encodes_bytes() -> None:
    assert encode("hello", tokenizer=byte_pair_tokenizer()) == list(b"hello")


def test_empty_tokens_are_tokens_without_text() -> None:
    types = np.array([NORMAL] * 256 + [NORMAL, CONTROL, USER_DEFINED], np.int32)
    entries = byte_pair_metadata([*byte_characters(), "", "", ""], more={"token_type": types})
    tokenizer = Tokenizer.from_metadata(entries)
    assert encode("ab", parse_special=True, tokenizer=tokenizer) == list(b"ab")
    assert tokenizer.decode([256, 257, 258], render_special=True) == b""


def test_bytes_without_a_token_are_left_out_and_the_rest_is_encoded() -> None:
    """As the `tokenizers` package does: SmolLM2's vocabulary lacks 21 bytes, eight of which a text may hold."""
    tokenizer = Tokenizer.from_metadata(byte_pair_metadata(["a", "b", "ab"], ["a b"]))
    assert encode("aéb a\x01b é", tokenizer=tokenizer) == [2, 0, 1]
    assert encode("é", tokenizer=tokenizer) == []


@pytest.mark.parametrize("count", [0, 255, 257])
def test_token_types_that_do_not_fit_the_tokens_are_refused(count: int) -> None:
    refused(f"token_type has {count} elements; 256 are expected", token_type=np.ones(count, np.int32))


def test_token_types_that_are_no_integers_are_refused() -> None:
    refused("token_type holds float32; integers are needed", token_type=np.ones(256, np.float32))


@pytest.mark.parametrize("type", [-1, 7, 256, 257, 2**31 - 1])
def test_a_token_type_that_does_not_exist_is_refused(type: int) -> None:
    refused(rf"token_type\[255\] is {type}; types go from 0 to 6", token_type=np.array([1] * 255 + [type], np.int64))


def test_without_token_types_every_token_is_normal() -> None:
    tokenizer = Tokenizer.from_metadata(byte_pair_metadata(byte_characters(), more={"token_type": None}))
    assert {tokenizer.token_type(id) for id in range(256)} == {TokenType.NORMAL}


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_a_missing_list_is_refused_by_name(key: str) -> None:
    entries = {"tokens": byte_characters(), "merges": ["a b"]}
    del entries[key]
    metadata = metadata_of(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            **{f"tokenizer.ggml.{key}": value for key, value in entries.items()},
        }
    )
    with pytest.raises(IntegrityError, match=rf"tokenizer\.ggml\.{key} is missing"):
        Tokenizer.from_metadata(metadata)


def test_a_vocabulary_without_tokens_is_refused() -> None:
    refused("tokenizer.ggml.tokens is empty", [])


@pytest.mark.parametrize(("offset", "length"), [(0, 4), (3, 1), (2**64 - 1, 2), (2**63, 2**32 - 1), (4, 0)])
@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_a_string_outside_the_data_is_refused(key: str, offset: int, length: int) -> None:
    data = np.frombuffer(b"a b", np.uint8)
    tables = {"tokens": ([0], [1]), "merges": ([0], [3])} | {key: ([0, offset], [3, length])}
    (token_offsets, token_lengths), (merge_offsets, merge_lengths) = tables["tokens"], tables["merges"]
    with pytest.raises(IntegrityError, match=rf"{key}\[1\] claims {length} bytes at offset {offset}, .* ends at 3"):
        _text.BytePairTokenizer(
            data=data,
            token_offsets=np.array(token_offsets, np.uint64),
            token_lengths=np.array(token_lengths, np.uint32),
            token_types=np.ones(len(token_offsets), np.uint8),
            merge_data=data,
            merge_offsets=np.array(merge_offsets, np.uint64),
            merge_lengths=np.array(merge_lengths, np.uint32),
            pre_tokenizer="gpt-2",
            control_texts=[],
        )


def test_a_special_token_of_a_thousand_bytes_is_found_and_a_longer_one_is_refused() -> None:
    limit = _text.SPECIAL_TOKEN_BYTES_MAX
    assert encode("<" * limit, tokenizer=byte_pair_tokenizer(special={"<" * limit: USER_DEFINED})) == [256]
    with pytest.raises(UnsupportedModelError, match=f"special token of {limit + 1} bytes; at most {limit}"):
        byte_pair_tokenizer(special={"<" * (limit + 1): USER_DEFINED})


TOKEN_TEXTS = st.one_of(st.sampled_from(["a", "b", "ab", "Ġ", "<s>", "</s>", "é", ""]), st.binary(max_size=4))


@given(st.data())
def test_any_vocabulary_gives_a_tokenizer_that_keeps_its_promises_or_a_typed_error(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(TOKEN_TEXTS, max_size=12, unique_by=lambda text: text or object()))
    pairs = st.tuples(TOKEN_TEXTS, TOKEN_TEXTS).map(lambda pair: b" ".join(_bytes(text) for text in pair))
    merges = data.draw(st.lists(pairs, max_size=8))
    types = data.draw(st.lists(st.integers(0, 6), min_size=len(tokens), max_size=len(tokens)))
    pre = data.draw(st.sampled_from(_text.PRE_TOKENIZERS))
    try:
        entries = byte_pair_metadata(tokens, merges, pre=pre, more={"token_type": np.array(types, np.int32)})
        tokenizer = Tokenizer.from_metadata(entries)
    except IntegrityError:
        return
    text = data.draw(st.binary(max_size=20))
    plain = tokenizer.encode(text, parse_special=False)
    assert not any(tokenizer.is_control(id) for id in plain)
    tokenizer.decode(tokenizer.encode(text, parse_special=True))


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


# Time


@pytest.mark.parametrize("pre", _text.PRE_TOKENIZERS)
@pytest.mark.parametrize(
    "text",
    [b"^" * 1_000_000, b"a" * 100_000, b" " * 200_000, b" " * 200_000 + b"x", b"\n \r\n" * 100_000, b"1" * 200_000,
     b"'" * 200_000, b"<|im_" * 100_000, "é".encode() * 100_000, b"\xff" * 200_000, b" \n" + b" " * 200_000 + b"x"],
    ids=lambda text: f"{text[:4]!r}×{len(text)}",
)  # fmt: skip
def test_monotonous_texts_take_linear_time(pre: str, text: bytes) -> None:
    tokenizer = byte_pair_tokenizer([*MERGES, "Ġ Ġ", "ĠĠ ĠĠ", "^ ^", "^^ ^^"], pre=pre, special=SPECIAL)
    started = time.process_time()
    ids = tokenizer.encode(text, parse_special=True)
    assert time.process_time() - started < 2  # a quadratic algorithm takes minutes
    assert tokenizer.decode(ids, render_special=True) == text


def test_other_threads_run_while_a_text_is_encoded() -> None:
    tokenizer = byte_pair_tokenizer(["^ ^", "^^ ^^"])
    finished = threading.Event()
    seconds = []

    def work() -> None:
        started = time.perf_counter()
        tokenizer.encode(b"^" * 2_000_000, parse_special=False)
        seconds.append(time.perf_counter() - started)
        finished.set()

    worker = threading.Thread(target=work)
    longest_gap_seconds, last = 0.0, time.perf_counter()
    worker.start()
    while not finished.wait(0.001):
        now = time.perf_counter()
        longest_gap_seconds, last = max(longest_gap_seconds, now - last), now
    longest_gap_seconds = max(longest_gap_seconds, time.perf_counter() - last)
    worker.join()
    assert longest_gap_seconds < seconds[0] / 2  # with the interpreter lock held it is all of it


def test_one_tokenizer_serves_several_threads_at_once() -> None:
    texts = [f"hello {'a' * count} wo<tool>rld" for count in range(1, 60)]
    expected = [encode(text) for text in texts]
    results: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: results.append([encode(text) for text in texts])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4
