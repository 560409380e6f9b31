// Attention over the pages of each sequence: rotate and store the step's keys and values, then look at all of them.
#pragma once

#include "attention_schedule.h"
#include "cache_pages.h"
#include "phase.h"

namespace magnitude {

// The pool of key/value pages (CacheLayout in engine/cache_layout.py): page-major; per layer the keys of K heads, then
// the values of K heads, each as cache_pages.h draws them.
struct PagePool {
  uint8_t* base;
  int pages;
  int layers;
  int key_value_heads;
  int head_size;
  CacheType type;

  size_t head_bytes() const { return page_shape(type, head_size).bytes(); }
  size_t page_bytes() const { return static_cast<size_t>(layers) * 2 * key_value_heads * head_bytes(); }
  uint8_t* key(int64_t page, int layer, int head) const {
    return base + page * page_bytes() + (static_cast<size_t>(layer) * 2 * key_value_heads + head) * head_bytes();
  }
  uint8_t* value(int64_t page, int layer, int head) const {
    return key(page, layer, head) + key_value_heads * head_bytes();
  }
};

enum class RopeStyle { kPairs, kHalves };

// How the heads of a buffer are rotated. No rotation: dimensions is 0.
struct Rotation {
  int dimensions;
  int table;              // rope table of the workspace
  RopeStyle style;
};

// One layer's attention: which slots it reads and writes, and how.
struct AttentionSettings {
  PagePool pages;
  int layer;              // of the cache
  AttentionShape shape;
  float scale;
  int32_t window;         // positions that a row sees, its own included; INT32_MAX: all
  float softcap;          // 0: none
  const float* sinks;     // [heads], or null
  int q, k, v, output;    // slots
  Rotation q_rotation, k_rotation;
};

// Rotates the step's queries and keys, puts its keys and values into their pages, and then computes for every row
// out[t][h] = softmax(scale * q[t][h] · keys) · values, over the positions up to the row's own, or the last of them.
//
// Where every sequence has one row (decoding), an item of attention work stores its own key and value first: that saves
// a barrier, and the page's lines stay with the thread that reads them next. Otherwise all rows are stored before.
class AttentionPhase : public Phase {
 public:
  explicit AttentionPhase(const AttentionSettings& settings) : settings_(settings) {}
  void run(const StepContext& context) const override;

 private:
  struct Queries {
    const float* q;
    size_t stride;
    int rows;
  };

  bool stores_first(const StepContext& context) const { return context.step.T > context.step.S; }
  void rotate(const StepContext& context, const Rotation& rotation, int row, float* heads, int count) const;
  void store(const StepContext& context, int sequence, int row, int head) const;
  Queries gather(const StepContext& context, const AttentionTile& tile, int head, int thread) const;
  void attend(const StepContext& context, const AttentionTile& tile, int head, int chunk, const Queries& queries,
              const AttentionState& state, int thread) const;
  void attend_whole(const StepContext& context, const AttentionItem& item, int thread) const;
  void attend_chunk(const StepContext& context, const AttentionItem& item, int thread) const;
  int first_chunk(const StepContext& context, const AttentionTile& tile) const;
  void fold(const StepContext& context, int rows, const AttentionState& into, const AttentionState& chunk) const;
  void finish(const StepContext& context, const AttentionTile& tile, int head, const AttentionState& state) const;

  AttentionSettings settings_;
};

}  // namespace magnitude
