// Names in a header, keys and tensor names alike: which are fit to be shown, and which stands twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace magnitude::formats {

constexpr std::size_t COLLISIONS_MAX = 16;  // names of one hash; two of 2^17 that meet by chance are news

// A name in an index that is sorted by hash and position: by what is ours alone, because the file may change while it
// is sorted.
struct IndexedName {
    std::uint64_t hash = 0;
    std::uint32_t position = 0;  // in key_values or tensors
};

// Whether a name is UTF-8 without control characters: they would end it for a C reader, or reach a terminal.
bool is_printable(std::string_view name);

// A printable name for a message, cut to a readable length between characters.
std::string quoted(std::string_view name);

std::uint64_t hash_of(std::string_view name);

// Two names that may not stand in one header.
struct NameClash {
    std::uint32_t earlier = 0;  // positions
    std::uint32_t later = 0;
    bool is_equal = false;  // otherwise they are of a crowd that shares a hash, which takes intent
};

// Sorts the names at [0, count) into an index.
template <typename NameAt>
std::optional<NameClash> index_names(std::size_t count, NameAt name, std::vector<IndexedName>& index) {
    index.resize(count);
    for (std::uint32_t position = 0; position < count; ++position) index[position] = {hash_of(name(position)), position};
    std::sort(index.begin(), index.end(), [&](const IndexedName& a, const IndexedName& b) {
        return a.hash != b.hash ? a.hash < b.hash : a.position < b.position;
    });
    for (std::size_t first = 0; first < count; ++first)
        for (std::size_t other = first + 1; other < count && index[other].hash == index[first].hash; ++other) {
            const std::uint32_t earlier = index[first].position, later = index[other].position;
            if (name(earlier) == name(later)) return NameClash{earlier, later, true};
            if (other - first >= COLLISIONS_MAX) return NameClash{earlier, later, false};
        }
    return std::nullopt;
}

}  // namespace magnitude::formats
