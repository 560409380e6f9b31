#include "attention_schedule.h"

#include <algorithm>

namespace magnitude {
namespace {

constexpr int kTileRows = 96;                  // query rows of a tile; one token's heads are never parted
constexpr int kItemsPerThread = 4;             // fewer whole items than this are worth splitting
constexpr size_t kPartialFloats = 1 << 20;     // 4 MiB: at 6 query heads of 128, 86,000 positions of two heads

}  // namespace

AttentionSchedule::AttentionSchedule(const Ops& ops, const AttentionShape& shape, const StepLimits& limits,
                                     int threads)
    : shape_(shape), rows_max_(std::max(kTileRows, shape.group())), threads_(threads) {
  const size_t tiles_max = limits.rows_max;
  tiles_.reserve(tiles_max);
  items_.reserve(std::max(tiles_max * shape.key_value_heads, kPartialFloats / (shape.head_size + 2)));
  partials_.allocate(kPartialFloats);
  const int split_items_max = kItemsPerThread * threads;
  finished_ = std::make_unique<std::atomic<int>[]>(split_items_max);
  const size_t state_floats = static_cast<size_t>(rows_max_) * (shape.head_size + 2);
  for (Thread& thread : threads_) {
    thread.q.allocate(static_cast<size_t>(rows_max_) * shape.head_size);
    thread.limits.allocate(rows_max_);
    thread.chunk.allocate(state_floats);
    thread.folded.allocate(state_floats);
    thread.scratch.allocate(ops.attention_scratch_bytes(rows_max_, shape.head_size));
  }
}

void AttentionSchedule::plan(const StepArrays& step) {
  plan_tiles(step);
  const int tiles = static_cast<int>(tiles_.size());
  const int heads = shape_.key_value_heads;
  int chunks = 0, tokens_max = 0;
  for (AttentionTile& tile : tiles_) {
    tile.partial_begin = chunks * heads;
    chunks += tile.chunks;
    tokens_max = std::max(tokens_max, tile.tokens);
  }
  partial_rows_ = tokens_max * shape_.group();
  const size_t partial_floats = static_cast<size_t>(partial_rows_) * (shape_.head_size + 2);
  is_split_ = chunks > tiles && tiles * heads < kItemsPerThread * static_cast<int>(threads_.size()) &&
              chunks * heads * partial_floats <= kPartialFloats;
  items_.clear();
  // The last tiles see the most positions: they go first, so that no thread is left with a long one.
  for (int tile = tiles - 1; tile >= 0; --tile) {
    for (int head = 0; head < heads; ++head) {
      const int parts = is_split_ ? tiles_[tile].chunks : 1;
      for (int chunk = 0; chunk < parts; ++chunk) items_.push_back({tile, head, chunk});
    }
  }
}

void AttentionSchedule::plan_tiles(const StepArrays& step) {
  const int tokens_per_tile = std::max(1, kTileRows / shape_.group());
  tiles_.clear();
  for (int s = 0; s < step.S; ++s) {
    for (int row = step.row_begin[s]; row < step.row_begin[s + 1]; row += tokens_per_tile) {
      const int end = std::min(row + tokens_per_tile, step.row_begin[s + 1]);
      const int chunks = step.positions[end - 1] / kChunkPositions + 1;
      tiles_.push_back({s, row, end - row, chunks, 0});
    }
  }
}

AttentionState AttentionSchedule::state_in(float* memory, int rows) const {
  return {memory, memory + rows, memory + 2 * rows};
}

AttentionState AttentionSchedule::partial(const AttentionTile& tile, int head, int chunk) const {
  const size_t floats = static_cast<size_t>(partial_rows_) * (shape_.head_size + 2);
  const size_t index = tile.partial_begin + static_cast<size_t>(head) * tile.chunks + chunk;
  return state_in(partials_.get() + index * floats, partial_rows_);
}

bool AttentionSchedule::finish_chunk(int tile, int head) {
  std::atomic<int>& finished = finished_[tile * shape_.key_value_heads + head];
  if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < tiles_[tile].chunks) return false;
  finished.store(0, std::memory_order_relaxed);
  return true;
}

size_t AttentionSchedule::bytes() const {
  size_t total = partials_.bytes();
  for (const Thread& thread : threads_) {
    total += thread.q.bytes() + thread.limits.bytes() + thread.chunk.bytes() + thread.folded.bytes() +
             thread.scratch.bytes();
  }
  return total;
}

}  // namespace magnitude
