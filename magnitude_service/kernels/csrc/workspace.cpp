#include "workspace.h"

#include <algorithm>

namespace magnitude {
namespace {

constexpr size_t kLineFloats = 16;

// Rows begin on cache lines, and an odd number of them apart, so that equal columns do not share one cache set.
size_t stride_of(int width) {
  const size_t lines = (static_cast<size_t>(width) + kLineFloats - 1) / kLineFloats;
  return (lines | 1) * kLineFloats;
}

}  // namespace

Workspace::Workspace(const Ops& ops, int threads, int rows_max, const std::vector<int>& slot_widths,
                     const WorkspaceNeeds& needs)
    : threads_(threads) {
  const size_t rows = rows_max;
  for (int width : slot_widths) {
    strides_.push_back(stride_of(width));
    slots_.emplace_back(rows * strides_.back());
  }
  const size_t row_bytes = ops.quantized_row_bytes(needs.inputs_max);
  shared_xq_.allocate(rows * row_bytes);
  shared_x_.allocate(rows * needs.float_inputs_max);
  for (int angles : needs.angle_counts) rope_tables_.emplace_back(rows * 2 * angles);
  for (Thread& thread : threads_) {
    thread.x.allocate(std::max(needs.private_floats, needs.inputs_max));
    thread.xq.allocate(std::max(needs.private_bytes, row_bytes));
    thread.matmul.allocate(ops.matmul_scratch_bytes(needs.inputs_max));
  }
}

size_t Workspace::bytes() const {
  size_t total = shared_xq_.bytes() + shared_x_.bytes();
  for (const auto& slot : slots_) total += slot.bytes();
  for (const auto& table : rope_tables_) total += table.bytes();
  for (const Thread& thread : threads_) total += thread.x.bytes() + thread.xq.bytes() + thread.matmul.bytes();
  return total;
}

}  // namespace magnitude
