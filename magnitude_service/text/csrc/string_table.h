// The strings of one GGUF array, where they lie in the mapped file. Nothing is copied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace magnitude::text {

// What is wrong with a file or a request. The bindings turn it into one of our Python errors, by `kind`.
struct Defect {
    enum class Kind { INTEGRITY, UNSUPPORTED_MODEL, INVALID_REQUEST } kind;
    std::string message;
};

struct StringTable {
    const char* key = "";  // the metadata key, for messages
    const char* data = nullptr;
    std::uint64_t data_bytes = 0;
    const std::uint64_t* offsets = nullptr;  // [count] from `data`
    const std::uint32_t* lengths = nullptr;  // [count] in bytes
    std::uint32_t count = 0;

    // `index < count`, on a table that `defect` found sound.
    std::string_view operator[](std::uint32_t index) const { return {data + offsets[index], lengths[index]}; }

    // Every string must lie within the data.
    std::optional<Defect> defect() const {
        for (std::uint32_t index = 0; index < count; ++index) {
            if (lengths[index] <= data_bytes && offsets[index] <= data_bytes - lengths[index]) continue;
            return Defect{Defect::Kind::INTEGRITY,
                          std::string(key) + "[" + std::to_string(index) + "] claims " +
                              std::to_string(lengths[index]) + " bytes at offset " + std::to_string(offsets[index]) +
                              ", but the data ends at " + std::to_string(data_bytes) + "."};
        }
        return std::nullopt;
    }
};

}  // namespace magnitude::text
