// A keyed hash for the open-addressing tables. The key is drawn once per process, so that no file can be
// written whose tokens all meet in one slot.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace magnitude::text {

inline std::uint64_t hash_key() {
    static const std::uint64_t key = [] {
        std::random_device device;
        return static_cast<std::uint64_t>(device()) << 32 | device();
    }();
    return key;
}

// Folds the 128-bit product, as wyhash does.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

constexpr std::uint64_t ODD_1 = 0x9E3779B97F4A7C15, ODD_2 = 0xD6E8FEB86659FD93;

inline std::uint64_t hash_pair(std::uint64_t key, std::uint32_t left, std::uint32_t right) {
    return mix((static_cast<std::uint64_t>(left) << 32 | right) ^ key, ODD_1);
}

inline std::uint64_t hash_bytes(std::uint64_t key, std::string_view bytes) {
    std::uint64_t hash = key ^ bytes.size() * ODD_2;
    const char* at = bytes.data();
    std::size_t left = bytes.size();
    for (std::uint64_t word = 0; left >= sizeof word; at += sizeof word, left -= sizeof word) {
        std::memcpy(&word, at, sizeof word);
        hash = mix(hash ^ word, ODD_1);
    }
    std::uint64_t tail = 0;
    std::memcpy(&tail, at, left);
    return mix(hash ^ tail, ODD_2);
}

// The number of slots, a power of two, that keeps a table of `entries` at most three quarters full.
inline std::uint64_t slots_for(std::uint64_t entries) {
    std::uint64_t slots = 16;
    while (slots * 3 < entries * 4) slots *= 2;
    return slots;
}

}  // namespace magnitude::text
