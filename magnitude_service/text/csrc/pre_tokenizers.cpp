// Each splitter is written by hand from the pattern that its model's authors published in tokenizer.json. A pattern is
// an ordered choice, and matching never needs more than one character of look-ahead beyond a run, so each
// splitter reads a text once (white space twice at most) whatever is in it.
#include "pre_tokenizers.h"

#include "utf8.h"

namespace magnitude::text {
namespace {

using Bytes = const std::uint8_t*;

// The end of the run of characters of class `kind` that begins at `at`, or of its first `count_max` characters.
Bytes run_end(Bytes at, Bytes end, CharacterClass kind, std::size_t count_max = SIZE_MAX) {
    for (std::size_t count = 0; at < end && count < count_max; ++count) {
        const Character character = character_at(at, end);
        if (character.kind() != kind) break;
        at += character.length_bytes;
    }
    return at;
}

bool is_newline(std::uint8_t byte) { return byte == '\r' || byte == '\n'; }

bool begins_with(Bytes at, Bytes end, CharacterClass kind) {
    return at < end && character_at(at, end).kind() == kind;
}

//     's|'t|'re|'ve|'m|'ll|'d
// The end of the contraction at `at`, or `at` if there is none. With `any_case` the pattern is (?i:…), where an s may
// also be U+017F 'ſ', its one other case variant.
Bytes contraction_end(Bytes at, Bytes end, bool any_case) {
    if (*at != '\'' || end - at < 2) return at;
    const auto letter = [&](Bytes p) -> int { return any_case && *p >= 'A' && *p <= 'Z' ? *p | 0x20 : *p; };
    switch (letter(at + 1)) {
        case 's': case 't': case 'm': case 'd':
            return at + 2;
        case 'r': case 'v':
            return end - at >= 3 && letter(at + 2) == 'e' ? at + 3 : at;
        case 'l':
            return end - at >= 3 && letter(at + 2) == 'l' ? at + 3 : at;
        default:
            return any_case && character_at(at + 1, end).code == 0x17F ? at + 3 : at;
    }
}

//     \s+(?!\S)|\s+
// White space up to the end, or up to its last character when something else follows (which may then take it along).
Bytes space_end(Bytes at, Bytes end, bool stops_before_number) {
    Bytes last = at;
    Bytes next = at;
    while (next < end) {
        const Character character = character_at(next, end);
        if (character.kind() != CharacterClass::SPACE) break;
        last = next;
        next += character.length_bytes;
    }
    // A text that was cut before each number ends there.
    const bool is_at_end = next == end || (stops_before_number && begins_with(next, end, CharacterClass::NUMBER));
    return is_at_end || last == at ? next : last;
}

//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// GPT-2's pattern. SmolLM's (`numbers_alone`) is the same, applied to each part of a text that was first cut on both
// sides of every \p{N}.
template <bool numbers_alone>
Bytes next_piece_gpt2(Bytes at, Bytes end) {
    if (const Bytes contraction = contraction_end(at, end, false); contraction != at) return contraction;
    const Bytes word = *at == ' ' && end - at > 1 ? at + 1 : at;
    const CharacterClass kind = character_at(word, end).kind();
    if (kind == CharacterClass::NUMBER && numbers_alone) {
        return word == at ? run_end(at, end, kind, 1) : word;
    }
    return kind == CharacterClass::SPACE ? space_end(at, end, numbers_alone) : run_end(word, end, kind);
}

//     \s*[\r\n]+|\s+(?!\S)|\s+
Bytes space_or_newlines_end(Bytes at, Bytes end) {
    Bytes after_newline = at;
    for (Bytes next = at; next < end;) {
        const Character character = character_at(next, end);
        if (character.kind() != CharacterClass::SPACE) break;
        next += character.length_bytes;
        if (character.code == '\r' || character.code == '\n') after_newline = next;
    }
    return after_newline != at ? after_newline : space_end(at, end, false);
}

//     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//     |\s*[\r\n]+|\s+(?!\S)|\s+
//
// Llama 3's pattern. Qwen 2's has \p{N} in place of \p{N}{1,3}.
template <std::size_t numbers_max>
Bytes next_piece_llama3(Bytes at, Bytes end) {
    if (const Bytes contraction = contraction_end(at, end, true); contraction != at) return contraction;
    const Character first = character_at(at, end);
    const CharacterClass kind = first.kind();
    if (kind == CharacterClass::LETTER) return run_end(at, end, kind);
    if (kind == CharacterClass::NUMBER) return run_end(at, end, kind, numbers_max);
    const Bytes second = at + first.length_bytes;
    if (!is_newline(*at) && begins_with(second, end, CharacterClass::LETTER))
        return run_end(second, end, CharacterClass::LETTER);
    if (kind == CharacterClass::OTHER || (*at == ' ' && begins_with(second, end, CharacterClass::OTHER))) {
        Bytes next = run_end(kind == CharacterClass::OTHER ? at : second, end, CharacterClass::OTHER);
        while (next < end && is_newline(*next)) ++next;
        return next;
    }
    return space_or_newlines_end(at, end);
}

}  // namespace

// Names on one line are the same pre-tokenizer under the names that converters gave it for different models.
// clang-format off
const PreTokenizer PRE_TOKENIZERS[] = {
    {"gpt-2",            next_piece_gpt2<false>, false, false}, {"phi-2",     next_piece_gpt2<false>, false, false},
    {"smollm",           next_piece_gpt2<true>,  false, false}, {"starcoder", next_piece_gpt2<true>,  false, false},
    {"llama-bpe",        next_piece_llama3<3>,   true,  true},  {"llama3",    next_piece_llama3<3>,   true,  true},
    {"llama-v3",         next_piece_llama3<3>,   true,  true},
    {"qwen2",            next_piece_llama3<1>,   false, false},
    {"deepseek-r1-qwen", next_piece_llama3<1>,   false, false},
};
// clang-format on
const std::size_t PRE_TOKENIZER_COUNT = sizeof PRE_TOKENIZERS / sizeof *PRE_TOKENIZERS;

const PreTokenizer* pre_tokenizer_named(std::string_view name) {
    for (const PreTokenizer& pre_tokenizer : PRE_TOKENIZERS)
        if (name == pre_tokenizer.name) return &pre_tokenizer;
    return nullptr;
}

}  // namespace magnitude::text
