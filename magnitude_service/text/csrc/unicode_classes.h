// The class of a code point, as the published pre-tokenizer patterns need it.
#pragma once

#include <cstdint>

namespace magnitude::text {

// \p{L}, \p{N}, \s (the property White_Space), and everything else. The three are disjoint.
enum class CharacterClass : std::uint8_t { OTHER = 0, LETTER = 1, NUMBER = 2, SPACE = 3 };

extern const char* const UNICODE_VERSION;
extern const std::uint8_t CLASS_PAGES[];       // code / 128 -> block
extern const std::uint8_t CLASS_BLOCKS[][32];  // 128 classes of 2 bits, the lowest code point in the lowest bits

constexpr std::uint32_t CLASSED_CODE_POINTS = 0x40000;  // beyond, every code point is OTHER

inline CharacterClass class_of(std::uint32_t code) {
    if (code >= CLASSED_CODE_POINTS) return CharacterClass::OTHER;
    const std::uint8_t packed = CLASS_BLOCKS[CLASS_PAGES[code >> 7]][(code & 127) >> 2];
    return static_cast<CharacterClass>(packed >> ((code & 3) * 2) & 3);
}

}  // namespace magnitude::text
