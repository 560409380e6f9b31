#include "merges.h"

#include <algorithm>
#include <string>

namespace magnitude::text {
namespace {

constexpr std::uint32_t BLOCK = 32;  // merges: enough to hide the latency, few enough to stay in the first cache

bool is_concatenation(std::string_view whole, std::string_view left, std::string_view right) {
    return whole.size() == left.size() + right.size() && whole.substr(0, left.size()) == left &&
           whole.substr(left.size()) == right;
}

}  // namespace

std::optional<Defect> Merges::build(const StringTable& texts, const Vocabulary& vocabulary) {
    if (auto defect = texts.defect()) return defect;
    key_ = hash_key();
    slots_.assign(slots_for(texts.count), Merge{0, 0, NO_RANK, NO_TOKEN});
    mask_ = slots_.size() - 1;
    ranks_ = texts.count;
    for (std::uint32_t first = 0; first < texts.count; first += BLOCK)
        if (auto defect = add(texts, first, std::min(first + BLOCK, texts.count), vocabulary)) return defect;
    return std::nullopt;
}

// Adds the merges with ranks in [first, last), a block at a time: each step asks for the memory that the next one
// needs for the whole block, or half of the time would go by waiting for it.
std::optional<Defect> Merges::add(const StringTable& texts, std::uint32_t first, std::uint32_t last,
                                  const Vocabulary& vocabulary) {
    struct Pending {
        std::string_view left_text, right_text;
        std::uint64_t left_hash, right_hash;
        std::uint32_t left, right;
    } block[BLOCK];
    for (std::uint32_t rank = first; rank < last; ++rank) {
        const std::string_view text = texts[rank];
        const std::size_t space = text.find(' ', 1);  // the alphabet has no space, but a token may begin with one
        if (space == std::string_view::npos || space + 1 == text.size())
            return Defect{Defect::Kind::INTEGRITY, "tokenizer.ggml.merges[" + std::to_string(rank) +
                                                       "] is not two tokens with a space between them."};
        Pending& merge = block[rank - first];
        merge.left_text = text.substr(0, space);
        merge.right_text = text.substr(space + 1);
        merge.left_hash = vocabulary.hash(merge.left_text);
        merge.right_hash = vocabulary.hash(merge.right_text);
    }
    for (std::uint32_t rank = first; rank < last; ++rank) {
        Pending& merge = block[rank - first];
        merge.left = vocabulary.find(merge.left_text, merge.left_hash);
        merge.right = vocabulary.find(merge.right_text, merge.right_hash);
        __builtin_prefetch(&slots_[hash_pair(key_, merge.left, merge.right) & mask_], 1);
    }
    for (std::uint32_t rank = first; rank < last; ++rank) {
        const Pending& merge = block[rank - first];
        if (merge.left == NO_TOKEN || merge.right == NO_TOKEN) continue;
        const std::uint32_t joined = find_joined(merge.left_text, merge.right_text, vocabulary);
        if (joined == NO_TOKEN || vocabulary.is_control(joined)) continue;
        // `find` ends on the slot of this pair or on the empty one where it belongs.
        if (const Merge& slot = find(merge.left, merge.right); slot.rank == NO_RANK)
            slots_[static_cast<std::size_t>(&slot - slots_.data())] = {merge.left, merge.right, rank, joined};
    }
    return std::nullopt;
}

// Vocabularies list the results of merges in the order of the merges, so the id after the last one is nearly always
// right, and needs no search.
std::uint32_t Merges::find_joined(std::string_view left, std::string_view right, const Vocabulary& vocabulary) {
    const std::uint32_t guess = last_joined_ + 1;
    if (guess < vocabulary.size() && is_concatenation(vocabulary.text(guess), left, right)) return last_joined_ = guess;
    const std::uint32_t joined = vocabulary.find(std::string(left).append(right));
    if (joined != NO_TOKEN) last_joined_ = joined;
    return joined;
}

}  // namespace magnitude::text
