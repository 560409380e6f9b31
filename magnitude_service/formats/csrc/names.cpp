#include "names.h"

#include <cstring>

namespace magnitude::formats {
namespace {

// Length of the valid UTF-8 sequence at the start of `text`, 0 where there is none or it is a control character.
std::size_t printable_sequence(std::string_view text) {
    const auto byte = [&](std::size_t index) { return static_cast<std::uint8_t>(text[index]); };
    const std::uint8_t first = byte(0);
    if (first < 0x80) return first >= 0x20 && first != 0x7F;
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
    for (std::size_t index = 1; index < length; ++index)
        if ((byte(index) & 0xC0) != 0x80) return 0;
    const std::uint8_t second = byte(1);
    const bool is_overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    const bool is_surrogate = first == 0xED && second >= 0xA0;
    const bool is_beyond = first == 0xF4 && second >= 0x90;
    const bool is_c1_control = first == 0xC2 && second < 0xA0;
    return is_overlong || is_surrogate || is_beyond || is_c1_control ? 0 : length;
}

}  // namespace

bool is_printable(std::string_view name) {
    while (!name.empty()) {
        const std::size_t length = printable_sequence(name);
        if (length == 0) return false;
        name.remove_prefix(length);
    }
    return true;
}

std::string quoted(std::string_view name) {
    constexpr std::size_t SHOWN_BYTES = 80;
    if (name.size() <= SHOWN_BYTES) return "'" + std::string(name) + "'";
    std::size_t cut = SHOWN_BYTES;
    while (cut > 0 && (static_cast<std::uint8_t>(name[cut]) & 0xC0) == 0x80) --cut;
    return "'" + std::string(name.substr(0, cut)) + "…'";
}

std::uint64_t hash_of(std::string_view name) {
    std::uint64_t hash = name.size();
    const auto mix = [&](std::uint64_t word) {
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    };
    std::uint64_t word = 0;
    for (; name.size() >= sizeof(word); name.remove_prefix(sizeof(word))) {
        std::memcpy(&word, name.data(), sizeof(word));
        mix(word);
    }
    word = 0;
    std::memcpy(&word, name.data(), name.size());
    mix(word);
    return hash;
}

}  // namespace magnitude::formats
