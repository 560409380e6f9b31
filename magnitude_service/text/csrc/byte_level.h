// The byte-level alphabet of GPT-2: every byte has one printable character, which stands for it in token texts.
//
//     0x21–0x7E, 0xA1–0xAC, 0xAE–0xFF   stand for themselves (the character with that code point)
//     the other 68 bytes, ascending      U+0100, U+0101, … U+0143   (so space, 0x20, is U+0120 'Ġ')
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace magnitude::text {

// Appends the UTF-8 of the characters that stand for `bytes`.
void append_byte_level(std::string_view bytes, std::string& out);

// Appends the bytes that the characters of `text` stand for. A text with any character outside the alphabet is not
// byte-level: its own bytes are appended as they are (as the `tokenizers` package does).
void append_bytes_of(std::string_view text, std::string& out);

}  // namespace magnitude::text
