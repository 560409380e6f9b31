// Byte-level byte-pair encoding: text to ids.
//
//     text ─special tokens▶ plain stretches ─pre-tokenizer▶ pieces ─bytes, then merges▶ ids
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "merges.h"
#include "pre_tokenizers.h"
#include "special_tokens.h"
#include "vocabulary.h"

namespace magnitude::text {

// A stretch of a text, from the end of the one before to `end`. Control tokens are recognised in trusted text alone.
struct Segment {
    std::uint64_t end;
    bool is_trusted;
};

constexpr std::uint64_t TEXT_BYTES_MAX = 0x7FFFFFFF;

class BytePairTokenizer {
  public:
    struct Tables {
        StringTable tokens;
        const std::uint8_t* types;  // [tokens.count]
        StringTable merges;
        std::vector<std::string> control_texts;
        std::string pre_tokenizer;
    };

    BytePairTokenizer() = default;
    BytePairTokenizer(const BytePairTokenizer&) = delete;  // its parts point at each other
    BytePairTokenizer& operator=(const BytePairTokenizer&) = delete;

    std::optional<Defect> build(const Tables& tables);

    // Appends the ids of `text`, which is one text however it is cut into segments: pieces and merges run across the
    // cuts. A special token is recognised only where it lies within segments of one kind, so nothing that a user typed
    // can become, complete or break up a control token. A byte without a token of its own yields no id.
    // `segments` are ascending and the last ends with the text, which has at most TEXT_BYTES_MAX bytes.
    // Time is O(n log n) in the bytes of the text. Safe from several threads at once.
    void encode(std::string_view text, const std::vector<Segment>& segments, std::vector<std::int32_t>& ids) const;

    const Vocabulary& vocabulary() const { return vocabulary_; }
    const PreTokenizer& pre_tokenizer() const { return *pre_tokenizer_; }
    std::uint64_t index_bytes() const { return vocabulary_.index_bytes() + merges_.index_bytes(); }

  private:
    Vocabulary vocabulary_;
    Merges merges_;
    SpecialTokens trusted_tokens_;    // control and user-defined
    SpecialTokens untrusted_tokens_;  // user-defined
    const PreTokenizer* pre_tokenizer_ = nullptr;
    std::uint32_t byte_tokens_[256] = {};  // the token of each single byte, or NO_TOKEN
};

}  // namespace magnitude::text
