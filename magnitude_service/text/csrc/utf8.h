// One character of UTF-8 at a time, strictly: no overlong form, no surrogate, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unicode_classes.h"

namespace magnitude::text {

// A byte that belongs to no valid character: its own character, of class OTHER, one byte long.
constexpr std::uint32_t INVALID_CODE = 0xFFFFFFFF;

struct Character {
    std::uint32_t code;
    std::uint32_t length_bytes;  // 1 to 4

    CharacterClass kind() const { return class_of(code); }
};

namespace detail {

inline bool continues(std::uint8_t byte, std::uint8_t low = 0x80, std::uint8_t high = 0xBF) {
    return byte >= low && byte <= high;
}

}  // namespace detail

// The character that begins at `at`; `at < end`. Bytes at `end` and after are never read.
inline Character character_at(const std::uint8_t* at, const std::uint8_t* end) {
    const std::uint8_t lead = at[0];
    if (lead < 0x80) return {lead, 1};
    const std::size_t available = static_cast<std::size_t>(end - at);
    if (lead >= 0xC2 && lead <= 0xDF) {
        if (available >= 2 && detail::continues(at[1])) return {(lead & 0x1Fu) << 6 | (at[1] & 0x3Fu), 2};
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        const std::uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;   // below: overlong
        const std::uint8_t high = lead == 0xED ? 0x9F : 0xBF;  // above: surrogates
        if (available >= 3 && detail::continues(at[1], low, high) && detail::continues(at[2]))
            return {(lead & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu), 3};
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        const std::uint8_t low = lead == 0xF0 ? 0x90 : 0x80;   // below: overlong
        const std::uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;  // above: beyond U+10FFFF
        if (available >= 4 && detail::continues(at[1], low, high) && detail::continues(at[2]) &&
            detail::continues(at[3]))
            return {(lead & 0x07u) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 | (at[3] & 0x3Fu), 4};
    }
    return {INVALID_CODE, 1};
}

}  // namespace magnitude::text
