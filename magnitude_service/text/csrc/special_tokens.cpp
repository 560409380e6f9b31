#include "special_tokens.h"

#include <algorithm>

namespace magnitude::text {

std::optional<Defect> SpecialTokens::build(const Vocabulary& vocabulary, bool with_control) {
    vocabulary_ = &vocabulary;
    for (std::uint32_t id = 0; id < vocabulary.size(); ++id) {
        const bool is_wanted =
            vocabulary.type(id) == TokenType::USER_DEFINED || (with_control && vocabulary.is_control(id));
        if (!is_wanted || vocabulary.text(id).empty()) continue;
        if (const std::size_t bytes = vocabulary.text(id).size(); bytes > SPECIAL_TOKEN_BYTES_MAX)
            return Defect{Defect::Kind::UNSUPPORTED_MODEL,
                          "tokenizer.ggml.tokens[" + std::to_string(id) + "] is a special token of " +
                              std::to_string(bytes) + " bytes; at most " + std::to_string(SPECIAL_TOKEN_BYTES_MAX) +
                              " are supported."};
        ids_.push_back(id);
    }
    std::sort(ids_.begin(), ids_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return vocabulary.text(a) < vocabulary.text(b); });
    for (const std::uint32_t id : ids_) ++first_[static_cast<std::uint8_t>(vocabulary.text(id)[0]) + 1];
    for (std::size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
    return std::nullopt;
}

// All candidates in [low, high) agree with `text` in their first `depth` bytes; each turn keeps those that agree in one
// byte more. The shortest candidate sorts first, so a complete match is always at `low`.
std::uint32_t SpecialTokens::narrow(std::string_view text, std::uint32_t low, std::uint32_t high) const {
    std::uint32_t longest = NO_TOKEN;
    for (std::size_t depth = 1; low < high; ++depth) {
        if (vocabulary_->text(ids_[low]).size() == depth) longest = ids_[low++];
        if (depth == text.size()) break;
        const auto wanted = static_cast<std::uint8_t>(text[depth]);
        const auto byte_at_depth = [&](std::uint32_t id) {
            return static_cast<std::uint8_t>(vocabulary_->text(id)[depth]);
        };
        const auto begin = ids_.begin() + low, end = ids_.begin() + high;
        const auto first = std::partition_point(begin, end, [&](auto id) { return byte_at_depth(id) < wanted; });
        const auto last = std::partition_point(first, end, [&](auto id) { return byte_at_depth(id) == wanted; });
        low = static_cast<std::uint32_t>(first - ids_.begin());
        high = static_cast<std::uint32_t>(last - ids_.begin());
    }
    return longest;
}

}  // namespace magnitude::text
