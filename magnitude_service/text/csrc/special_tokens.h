// Finds tokens that stand in a text literally: the longest one that begins at a given place.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vocabulary.h"

namespace magnitude::text {

// A longer CONTROL or USER_DEFINED token is refused: the work per byte of text is bounded by it.
constexpr std::size_t SPECIAL_TOKEN_BYTES_MAX = 1024;

class SpecialTokens {
  public:
    // All USER_DEFINED tokens of the vocabulary, and its control tokens too where asked.
    std::optional<Defect> build(const Vocabulary& vocabulary, bool with_control);

    // The longest token that is a prefix of `text`, which is not empty; NO_TOKEN if there is none.
    std::uint32_t longest_prefix(std::string_view text) const {
        const auto lead = static_cast<std::uint8_t>(text[0]);
        if (first_[lead] == first_[lead + 1]) return NO_TOKEN;
        return narrow(text, first_[lead], first_[lead + 1]);
    }

  private:
    std::uint32_t narrow(std::string_view text, std::uint32_t low, std::uint32_t high) const;

    const Vocabulary* vocabulary_ = nullptr;
    std::vector<std::uint32_t> ids_;             // ascending by text
    std::array<std::uint32_t, 257> first_{};     // the tokens that begin with byte b are ids_[first_[b], first_[b + 1])
};

}  // namespace magnitude::text
