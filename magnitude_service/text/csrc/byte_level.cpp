#include "byte_level.h"

#include <array>

#include "utf8.h"

namespace magnitude::text {
namespace {

constexpr std::uint32_t SHIFTED_FIRST = 0x100;  // the first of the characters that stand for unprintable bytes
constexpr std::uint32_t ALPHABET_END = 0x144;
constexpr std::uint16_t NO_BYTE = 0xFFFF;

constexpr bool stands_for_itself(std::uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
    std::array<std::uint16_t, 256> code_of{};
    std::array<std::uint16_t, ALPHABET_END> byte_of{};
};

constexpr Alphabet make_alphabet() {
    Alphabet alphabet{};
    for (std::uint32_t code = 0; code < ALPHABET_END; ++code) alphabet.byte_of[code] = NO_BYTE;
    std::uint32_t next = SHIFTED_FIRST;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        const std::uint32_t code = stands_for_itself(byte) ? byte : next++;
        alphabet.code_of[byte] = static_cast<std::uint16_t>(code);
        alphabet.byte_of[code] = static_cast<std::uint16_t>(byte);
    }
    return alphabet;
}

constexpr Alphabet ALPHABET = make_alphabet();

}  // namespace

void append_byte_level(std::string_view bytes, std::string& out) {
    for (const char byte : bytes) {
        const std::uint16_t code = ALPHABET.code_of[static_cast<std::uint8_t>(byte)];
        if (code < 0x80) {
            out.push_back(static_cast<char>(code));
        } else {  // at most U+0143: two bytes of UTF-8
            out.push_back(static_cast<char>(0xC0 | code >> 6));
            out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
        }
    }
}

void append_bytes_of(std::string_view text, std::string& out) {
    const std::size_t before = out.size();
    const auto* at = reinterpret_cast<const std::uint8_t*>(text.data());
    const auto* const end = at + text.size();
    while (at < end) {
        const Character character = character_at(at, end);
        if (character.code >= ALPHABET_END || ALPHABET.byte_of[character.code] == NO_BYTE) {
            out.resize(before);
            out.append(text);
            return;
        }
        out.push_back(static_cast<char>(ALPHABET.byte_of[character.code]));
        at += character.length_bytes;
    }
}

}  // namespace magnitude::text
