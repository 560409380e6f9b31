"""Our tokenizer against the `tokenizers` package, with the pre-tokenizers as the models' authors published them."""

from __future__ import annotations

import json
import random
import sys
from functools import cache

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers

from magnitude_service.text import _text
from magnitude_service.text.tokenizer import Tokenizer
from tests.support.vocabularies import CONTROL, USER_DEFINED, byte_characters, byte_pair_metadata

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(*, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)])


PUBLISHED = {
    "gpt-2": byte_level(use_regex=True),
    "phi-2": byte_level(use_regex=True),
    "smollm": digits_then_gpt2(),
    "starcoder": digits_then_gpt2(),
    "llama-bpe": split(LLAMA3),
    "llama3": split(LLAMA3),
    "llama-v3": split(LLAMA3),
    "qwen2": split(QWEN2),
    "deepseek-r1-qwen": split(QWEN2),
}
PATTERNS = ["gpt-2", "smollm", "llama-bpe", "qwen2"]
"""One name for each pattern; the other names are aliases."""

TAKE_WHOLE_PIECES = {"llama-bpe", "llama3", "llama-v3"}
SPECIAL = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED, "</tool>": USER_DEFINED}

CORPUS = [
    "The quick brown fox doesn't jump; they'll say it's what we've DONE: I'D go, you're IT'S. 12 345 6789 a1b2",
    "def f(x):\n    return x ** 2  # naïve café\r\n\r\n\tfor i in range(10):\n\t\tprint(i, '...')\n\n\n",
    "你好，世界！今天天气怎么样？ こんにちは世界。 한국어 문장입니다. Привет, мир! مرحبا بالعالم नमस्ते สวัสดี ١٢٣ ⅧⅨ ½",
    "😀😃 👩‍👩‍👧‍👦 🇫🇷 👍🏽  e\u0301 \u00a0\u2003\u3000\u2028 ''' \"\"\" <<>> && || == != ---- ====",
] * 3

SNIPPETS = [
    *("'s", "'S", "'ſ", "'ll", "'LL", "'lL", "'re", "'VE", "'m", "'d", "'T", "'", "''s", "'l", "'é", "'r", "'v"),
    *(" ", "  ", "   ", "\n", "\r\n", "\r", "\t", "\n\n", " \n", "\n ", "\v", "\f", "\x1c", "\x85", "\xa0"),
    *("\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\ue000", "\U0010ffff", "\0"),
    *("a", "B", "é", "e\u0301", "\u0301", "ß", "ǅ", "ʰ", "中", "日本", "한", "ำ", "\U000323af"),
    *("1", "12", "1234", "٣", "Ⅻ", "½", "①", "𝟘", "\U00010d40"),
    *("👩\u200d👩\u200d👧", "\u200d", "🇫🇷", "👍🏽", "_", "...", "?!", "$", "the ", " the", "hello"),
    *("<", "<|im_end|>", "<|im_end|", "<tool>", "</tool>", "<tool"),
]
NEWER_NUMBERS = range(0x11DE0, 0x11DEA)
"""Digits of Unicode 17: the package's `Digits` follows the newer Unicode of the Rust that built it."""

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters=[chr(code) for code in NEWER_NUMBERS])
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(CHARACTERS, max_size=4)), max_size=30).map("".join)


@cache
def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level vocabulary trained on the corpus by the package itself."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = byte_level(use_regex=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


@cache
def pair(pre: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    vocab, merges = vocabulary()
    theirs = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in TAKE_WHOLE_PIECES))
    theirs.pre_tokenizer = PUBLISHED[pre]
    theirs.add_special_tokens([AddedToken(text, normalized=False) for text, type in SPECIAL.items() if type == CONTROL])
    theirs.add_tokens([AddedToken(text, normalized=False) for text, type in SPECIAL.items() if type == USER_DEFINED])
    tokens = sorted(vocab, key=vocab.__getitem__)
    ours = byte_pair_metadata(tokens, [" ".join(merge) for merge in merges], special=SPECIAL, pre=pre)
    return Tokenizer.from_metadata(ours), theirs


BYTES = {character: byte for byte, character in enumerate(byte_characters())}


def assert_equal(pre: str, text: str) -> None:
    """The same pieces, and the same ids with and without special tokens."""
    published = [piece for piece, _ in PUBLISHED[pre].pre_tokenize_str(text)]
    assert _text.pieces(pre, text.encode()) == [bytes(BYTES[character] for character in piece) for piece in published]
    ours, theirs = pair(pre)
    assert ours.encode(text, parse_special=True).tolist() == theirs.encode(text, add_special_tokens=False).ids
    theirs.encode_special_tokens = True  # special tokens are plain text; added ones that are not special stay tokens
    try:
        assert ours.encode(text, parse_special=False).tolist() == theirs.encode(text, add_special_tokens=False).ids
    finally:
        theirs.encode_special_tokens = False


def test_every_pre_tokenizer_has_its_published_twin_here() -> None:
    assert set(_text.PRE_TOKENIZERS) == set(PUBLISHED)
    assert len(vocabulary()[1]) > 300


@pytest.mark.parametrize("pre", PUBLISHED)
def test_the_corpus_encodes_alike(pre: str) -> None:
    for text in CORPUS:
        assert_equal(pre, text)


@pytest.mark.parametrize("pre", PATTERNS)
@given(text=TEXTS)
@settings(max_examples=400)
def test_any_text_encodes_alike(pre: str, text: str) -> None:
    assert_equal(pre, text)


@pytest.mark.parametrize("pre", PATTERNS)
@pytest.mark.parametrize("quote", ["'", " '", "''", "x'", "1'", "\n'"])
def test_contractions_split_alike_in_every_case(pre: str, quote: str) -> None:
    for tail in (
        "s",
        "S",
        "ſ",
        "t",
        "T",
        "re",
        "RE",
        "rE",
        "r",
        "ve",
        "Ve",
        "m",
        "M",
        "ll",
        "LL",
        "lL",
        "l",
        "d",
        "D",
        "K",
    ):
        for after in ("", "a", "é", "1", " ", "'", "\u0301"):
            assert_equal(pre, quote + tail + after)


@cache
def dense_pair() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Merges of three letters in a random order, so that nearly every neighbour can merge and ranks compete."""
    draws = random.Random(1)
    tokens = ["a", "b", "c"]
    merges: list[tuple[str, str]] = []
    while len(merges) < 300:
        left, right = draws.choice(tokens), draws.choice(tokens)
        if left + right not in tokens and len(left + right) < 9:
            tokens.append(left + right)
            merges.append((left, right))
    draws.shuffle(merges)
    theirs = tokenizers.Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    ours = byte_pair_metadata(tokens, [" ".join(merge) for merge in merges])
    return Tokenizer.from_metadata(ours), theirs


@pytest.mark.parametrize("length", [2, 5, 31, 32, 33, 60, 400])
def test_words_of_any_length_merge_alike(length: int) -> None:
    ours, theirs = dense_pair()
    for seed in range(100):
        word = "".join(random.Random(seed).choices("abc", k=length))
        assert ours.encode(word, parse_special=False).tolist() == theirs.encode(word).ids, (seed, word)


@pytest.mark.parametrize("pre", PATTERNS)
@pytest.mark.parametrize("frame", ["a{}b", " {}1 ", "'{} ", "\n{}{}\r\n  {}"])
def test_every_run_of_code_points_of_one_class_splits_alike_at_its_ends(pre: str, frame: str) -> None:
    classes = _text.classes_of_code_points(sys.maxunicode + 1)
    ends = [code for code in range(1, len(classes)) if classes[code - 1] != classes[code]]
    codes = {code for end in ends for code in (end - 1, end)} - {*range(0xD800, 0xE000), *NEWER_NUMBERS}
    assert len(codes) > 1000
    assert_equal(pre, "".join(frame.replace("{}", chr(code)) for code in sorted(codes)))


@pytest.mark.parametrize("pre", PATTERNS)
@given(text=TEXTS)
@settings(max_examples=100)
def test_decoding_gives_the_text_back(pre: str, text: str) -> None:
    ours, _ = pair(pre)
    for parse_special in (False, True):
        assert ours.decode(ours.encode(text, parse_special=parse_special), render_special=True) == text.encode()
