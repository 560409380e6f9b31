// How a step's attention is cut into items of work, and the memory that the items need.
//
// A tile is a few adjacent rows (tokens) of one sequence; together with one key/value head it has R = tokens * G query
// rows. A tile looks at its positions in chunks of 256, and folds the chunks in ascending order, whoever does it: so
// neither the number of threads nor the choice below changes a bit of the result.
//   whole: an item is a tile and a head, and goes through all chunks. Right where there are tiles enough to share out.
//   split: an item is one chunk of a tile and a head; its partial result is kept, and whoever finishes the last chunk
//          of a tile and head folds them. Right for few tiles over long contexts: decoding.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "ops.h"
#include "step.h"
#include "workspace.h"

namespace magnitude {

constexpr int kChunkPositions = kChunkPages * kPageTokens;

struct AttentionShape {
  int heads;
  int key_value_heads;
  int head_size;

  int group() const { return heads / key_value_heads; }
};

struct AttentionTile {
  int sequence;
  int row_begin;         // first row of the step
  int tokens;
  int chunks;            // that its last token sees
  int partial_begin;     // split: partial of head 0, chunk 0; [key_value_heads][chunks] of them follow
};

struct AttentionItem {
  int tile;
  int head;
  int chunk;             // split only
};

// The state of a softmax over some positions, for R query rows: maxima, sums and weighted values.
struct AttentionState {
  float* m;              // [R]
  float* l;              // [R]
  float* o;              // [R][D]
};

class AttentionSchedule {
 public:
  // What one thread has for itself.
  struct Thread {
    AlignedArray<float> q;            // [R][D]
    AlignedArray<int32_t> limits;     // [R]
    AlignedArray<float> chunk;        // an AttentionState
    AlignedArray<float> folded;       // an AttentionState
    AlignedArray<uint8_t> scratch;    // Ops::attention_scratch_bytes
  };

  AttentionSchedule(const Ops& ops, const AttentionShape& shape, const StepLimits& limits, int threads);

  // Cuts one step. Allocates nothing.
  void plan(const StepArrays& step);

  const std::vector<AttentionItem>& items() const { return items_; }
  const AttentionTile& tile(int index) const { return tiles_[index]; }
  bool is_split() const { return is_split_; }

  Thread& thread(int index) { return threads_[index]; }
  AttentionState state_in(float* memory, int rows) const;
  AttentionState partial(const AttentionTile& tile, int head, int chunk) const;

  // Counts a finished chunk of a tile and head; true for the last one, which also makes the count ready for the next
  // layer.
  bool finish_chunk(int tile, int head);
  size_t bytes() const;

 private:
  void plan_tiles(const StepArrays& step);

  AttentionShape shape_;
  int rows_max_;                      // R of the largest tile
  std::vector<AttentionTile> tiles_;
  std::vector<AttentionItem> items_;
  bool is_split_ = false;
  int partial_rows_ = 0;              // R that each partial of this step has room for
  AlignedArray<float> partials_;
  std::unique_ptr<std::atomic<int>[]> finished_;   // [split tiles][key_value_heads] chunks
  std::vector<Thread> threads_;
};

}  // namespace magnitude
