#include "piece_merger.h"

#include <algorithm>

namespace magnitude::text {

void PieceMerger::scan(std::vector<std::uint32_t>& tokens) {
    std::uint32_t rank[SCANNED_TOKENS_MAX], joined[SCANNED_TOKENS_MAX];  // of the pair that begins here
    std::size_t count = tokens.size();
    const auto look_up = [&](std::size_t at) {
        const Merge& merge = merges_.find(tokens[at], tokens[at + 1]);
        rank[at] = merge.rank;
        joined[at] = merge.joined;
    };
    for (std::size_t at = 0; at + 1 < count; ++at) look_up(at);
    while (count > 1) {
        const std::size_t best = static_cast<std::size_t>(std::min_element(rank, rank + count - 1) - rank);
        if (rank[best] == NO_RANK) break;
        tokens[best] = joined[best];
        std::copy(tokens.begin() + best + 2, tokens.begin() + count, tokens.begin() + best + 1);
        for (std::size_t at = best + 1; at + 2 < count; ++at) {
            rank[at] = rank[at + 1];
            joined[at] = joined[at + 1];
        }
        --count;
        if (best + 1 < count) look_up(best);
        if (best > 0) look_up(best - 1);
    }
    tokens.resize(count);
}

template <typename Queue>
void PieceMerger::queue(std::vector<std::uint32_t>& tokens, Queue& queue) {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    next_.resize(count);
    previous_.resize(count);
    rank_.assign(count, NO_RANK);
    joined_.resize(count);
    for (std::uint32_t at = 0; at < count; ++at) {
        next_[at] = at + 1;      // `count` is the end
        previous_[at] = at - 1;  // of position 0: never followed
    }
    const auto look_up = [&](std::uint32_t left) {
        const std::uint32_t right = next_[left];
        const Merge& merge = merges_.find(tokens[left], tokens[right]);
        rank_[left] = merge.rank;
        joined_[left] = merge.joined;
        return merge.rank != NO_RANK;
    };
    const auto renew = [&](std::uint32_t left) {
        if (look_up(left)) queue.push(rank_[left], left);
    };
    for (std::uint32_t at = 0; at + 1 < count; ++at) renew(at);

    std::uint32_t rank, left;
    while (queue.pop(rank, left)) {
        // Stale: the pair changed since. Tokens only grow, so a pair that changed never comes back.
        if (rank_[left] != rank) continue;
        const std::uint32_t right = next_[left];
        tokens[left] = joined_[left];
        rank_[left] = rank_[right] = NO_RANK;
        next_[left] = next_[right];
        if (left > 0) renew(previous_[left]);  // leftmost first: the order that buckets keep without sorting
        if (next_[left] < count) {
            previous_[next_[left]] = left;
            renew(left);
        }
    }
    std::uint32_t kept = 0;
    for (std::uint32_t at = 0; at < count; at = next_[at]) tokens[kept++] = tokens[at];
    tokens.resize(kept);
}

template void PieceMerger::queue(std::vector<std::uint32_t>&, MergeHeap&);
template void PieceMerger::queue(std::vector<std::uint32_t>&, MergeBuckets&);

}  // namespace magnitude::text
