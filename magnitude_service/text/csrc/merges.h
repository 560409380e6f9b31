// The merges of a byte-pair vocabulary: which two neighbouring tokens become which one, and in which order.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hashing.h"
#include "vocabulary.h"

namespace magnitude::text {

struct Merge {
    std::uint32_t left, right;
    std::uint32_t rank;  // lower ranks are applied first; NO_RANK marks an empty slot
    std::uint32_t joined;
};
constexpr std::uint32_t NO_RANK = 0xFFFFFFFF;

class Merges {
  public:
    // `texts[rank]` is "left right". A merge is never applied when one of its three tokens is not in the vocabulary, or
    // when it would make a control token. Of two merges of the same pair the first counts.
    // Lifetime: keeps nothing of `texts`.
    std::optional<Defect> build(const StringTable& texts, const Vocabulary& vocabulary);

    // The merge of this pair, or a merge with NO_RANK.
    const Merge& find(std::uint32_t left, std::uint32_t right) const {
        std::uint64_t at = hash_pair(key_, left, right) & mask_;
        while (slots_[at].rank != NO_RANK && (slots_[at].left != left || slots_[at].right != right))
            at = (at + 1) & mask_;
        return slots_[at];
    }

    // Every rank is below.
    std::uint32_t ranks() const { return ranks_; }

    std::uint64_t index_bytes() const { return slots_.size() * sizeof(Merge); }

  private:
    std::optional<Defect> add(const StringTable& texts, std::uint32_t first, std::uint32_t last,
                              const Vocabulary& vocabulary);
    std::uint32_t find_joined(std::string_view left, std::string_view right, const Vocabulary& vocabulary);

    std::vector<Merge> slots_;
    std::uint64_t mask_ = 0;
    std::uint32_t ranks_ = 0;
    std::uint64_t key_ = 0;
    std::uint32_t last_joined_ = 0;  // while building: a hint
};

}  // namespace magnitude::text
