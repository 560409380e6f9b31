// Applies merges to the tokens of one piece, lowest rank first, leftmost first among equals.
#pragma once

#include <cstdint>
#include <vector>

#include "merge_queues.h"
#include "merges.h"

namespace magnitude::text {

// Keeps its working memory from piece to piece: one per call of `encode`, never shared.
class PieceMerger {
  public:
    explicit PieceMerger(const Merges& merges) : merges_(merges) {}

    // Replaces `tokens` by what the merges make of them.
    void apply(std::vector<std::uint32_t>& tokens) {
        if (tokens.size() <= SCANNED_TOKENS_MAX) {
            scan(tokens);
        } else if (tokens.size() <= HEAP_TOKENS_MAX) {
            queue(tokens, heap_);
        } else {
            buckets_.prepare(merges_.ranks());
            queue(tokens, buckets_);
        }
    }

  private:
    // Up to here, looking at every pair for each merge costs less than a heap, because words are short. English with the
    // vocabulary of Qwen2.5, MB/s by this limit: 1 19, 8 32, 16 36, 32 37, 48 36 (AMD EPYC, 2026-11-29).
    static constexpr std::size_t SCANNED_TOKENS_MAX = 32;

    // Beyond here a heap no longer fits into the caches, and every merge waits for memory a dozen times.
    static constexpr std::size_t HEAP_TOKENS_MAX = 4096;

    void scan(std::vector<std::uint32_t>& tokens);
    template <typename Queue>
    void queue(std::vector<std::uint32_t>& tokens, Queue& queue);

    const Merges& merges_;
    MergeHeap heap_;
    MergeBuckets buckets_;
    // The working memory of `queue`: a doubly linked list over positions in `tokens`.
    std::vector<std::uint32_t> next_, previous_;
    std::vector<std::uint32_t> rank_;    // of the pair that begins here, NO_RANK if none
    std::vector<std::uint32_t> joined_;  // what that pair becomes
};

}  // namespace magnitude::text
