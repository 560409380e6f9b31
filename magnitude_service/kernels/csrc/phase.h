// A phase: what all threads do between two barriers, as a share of one step.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_schedule.h"
#include "ops.h"
#include "pool.h"
#include "step.h"
#include "workspace.h"

namespace magnitude {

// A tensor of the file as a matrix of `rows` rows with `columns` inputs each.
struct Weights {
  const uint8_t* data;
  TensorType type;
  int rows;
  int columns;
  size_t row_bytes;

  const uint8_t* row(int64_t index) const { return data + index * row_bytes; }
  bool is_float() const {
    return type == TensorType::F32 || type == TensorType::F16 || type == TensorType::BF16;
  }
};

// What every phase of a step works with.
struct StepContext {
  const Ops& ops;
  Pool& pool;
  Workspace& workspace;
  const StepArrays& step;
  AttentionSchedule& attention;
  const int32_t* sequence_of_row;   // [T]
};

class Phase {
 public:
  virtual ~Phase() = default;
  virtual void run(const StepContext& context) const = 0;
};

// Rows that one chunk of a phase over rows takes: few enough to share out, enough to outweigh claiming a chunk.
constexpr int kRowsPerChunk = 8;

// Calls work(thread, row) for every row in [0, rows), shared over the pool.
template <class Work>
void for_each_row(Pool& pool, int rows, Work&& work) {
  const int rows_per_chunk = rows <= kRowsPerChunk * pool.threads() ? 1 : kRowsPerChunk;
  pool.run((rows + rows_per_chunk - 1) / rows_per_chunk, [&](int thread, int chunk) {
    const int end = chunk * rows_per_chunk + rows_per_chunk;
    for (int row = chunk * rows_per_chunk; row < end && row < rows; ++row) work(thread, row);
  });
}

}  // namespace magnitude
