#include "matmul_phase.h"

#include <algorithm>
#include <cstring>

namespace magnitude {
namespace {

// Weights of one chunk: short enough to share out evenly. Threads go through adjacent chunks, so that each reads one
// stream of memory however short they are.
constexpr size_t kFewRowsBytes = 32 << 10;
constexpr size_t kManyRowsBytes = 16 << 10;
constexpr int kFewRowsMax = 16;

// Rows of activations that one chunk takes: those of K = 2,048 are 0.5 MiB, half of a second-level cache.
constexpr int kRowTile = 128;

// A thread prepares up to so many values for itself, and a single row always: about the time of a barrier.
constexpr int kPrivateValues = 4096;

}  // namespace

int chunk_rows(size_t row_bytes, int M) {
  const size_t bytes = M <= kFewRowsMax ? kFewRowsBytes : kManyRowsBytes;
  return std::max(1, static_cast<int>(bytes / row_bytes) / kRowGroup) * kRowGroup;
}

MatmulPhase::MatmulPhase(RowSource source, std::vector<Matmul> matmuls)
    : source_(source), matmuls_(std::move(matmuls)), columns_(matmuls_.front().weights.columns) {
  for (const Matmul& matmul : matmuls_) (matmul.weights.is_float() ? any_float_ : any_quantised_) = true;
  few_rows_ranges_ = split(matmuls_, 1);
  many_rows_ranges_ = split(matmuls_, kFewRowsMax + 1);
}

std::vector<MatmulPhase::Range> MatmulPhase::split(const std::vector<Matmul>& matmuls, int M) {
  std::vector<Range> ranges;
  for (int index = 0; index < static_cast<int>(matmuls.size()); ++index) {
    const Weights& weights = matmuls[index].weights;
    const int step = chunk_rows(weights.row_bytes, M);
    for (int n = 0; n < weights.rows; n += step) ranges.push_back({index, n, std::min(n + step, weights.rows)});
  }
  return ranges;
}

bool MatmulPhase::is_private(int rows) const { return rows == 1 || rows * columns_ <= kPrivateValues; }

void MatmulPhase::add_needs(const Ops& ops, WorkspaceNeeds* needs) const {
  const int rows = std::max(1, kPrivateValues / columns_);
  needs->inputs_max = std::max(needs->inputs_max, columns_);
  if (any_float_) needs->float_inputs_max = std::max(needs->float_inputs_max, columns_);
  needs->private_floats = std::max(needs->private_floats, rows * columns_);
  needs->private_bytes = std::max(needs->private_bytes, rows * ops.quantized_row_bytes(columns_));
}

void MatmulPhase::run(const StepContext& context) const {
  run_rows(context, {nullptr, context.step.T, nullptr, 0});
}

void MatmulPhase::run_rows(const StepContext& context, const RowSelection& selection) const {
  const bool few = selection.count <= kFewRowsMax;
  const std::vector<Range>& ranges = few ? few_rows_ranges_ : many_rows_ranges_;
  const int range_count = static_cast<int>(ranges.size());
  if (is_private(selection.count)) {
    const uint64_t serial = context.workspace.next_serial();
    context.pool.run_streams(range_count, [&](int thread, int chunk) {
      Workspace::Thread& own = context.workspace.thread(thread);
      if (own.prepared != serial) prepare_privately(context, selection, thread);
      own.prepared = serial;
      const Prepared prepared{own.x.get(), static_cast<size_t>(columns_), own.xq.get()};
      multiply(context, selection, prepared, ranges[chunk], 0, selection.count, thread);
    });
    return;
  }
  const Prepared prepared = prepare_shared(context, selection);
  const int tiles = (selection.count + kRowTile - 1) / kRowTile;
  context.pool.run_streams(range_count * tiles, [&](int thread, int chunk) {
    const int m_begin = chunk / range_count * kRowTile;
    const int m_end = std::min(m_begin + kRowTile, selection.count);
    multiply(context, selection, prepared, ranges[chunk % range_count], m_begin, m_end, thread);
  });
}

// One row of the matmuls' input into x, float32, and where any weights are quantised into xq.
void MatmulPhase::prepare_row(const StepContext& context, int row, float* x, uint8_t* xq) const {
  const Workspace& workspace = context.workspace;
  const float* input = workspace.slot(source_.input) + row * workspace.slot_stride(source_.input);
  switch (source_.kind) {
    case RowSource::Kind::kPlain:
      std::memcpy(x, input, columns_ * sizeof(float));
      break;
    case RowSource::Kind::kNorm:
      context.ops.rms_norm(input, source_.weight, source_.epsilon, columns_, x);
      break;
    case RowSource::Kind::kGated:
      context.ops.silu_multiply(input, workspace.slot(source_.up) + row * workspace.slot_stride(source_.up), columns_,
                                x);
      break;
  }
  if (any_quantised_) context.ops.quantize(x, columns_, 1, columns_, xq);
}

void MatmulPhase::prepare_privately(const StepContext& context, const RowSelection& selection, int thread) const {
  const Workspace::Thread& own = context.workspace.thread(thread);
  const size_t row_bytes = context.ops.quantized_row_bytes(columns_);
  for (int m = 0; m < selection.count; ++m) {
    const int row = selection.rows == nullptr ? m : selection.rows[m];
    prepare_row(context, row, own.x.get() + static_cast<size_t>(m) * columns_, own.xq.get() + m * row_bytes);
  }
}

MatmulPhase::Prepared MatmulPhase::prepare_shared(const StepContext& context, const RowSelection& selection) const {
  Workspace& workspace = context.workspace;
  const size_t row_bytes = context.ops.quantized_row_bytes(columns_);
  for_each_row(context.pool, selection.count, [&](int thread, int m) {
    const int row = selection.rows == nullptr ? m : selection.rows[m];
    float* x = any_float_ ? workspace.shared_x() + static_cast<size_t>(m) * columns_ : workspace.thread(thread).x.get();
    prepare_row(context, row, x, workspace.shared_xq() + m * row_bytes);
  });
  return {workspace.shared_x(), static_cast<size_t>(columns_), workspace.shared_xq()};
}

void MatmulPhase::multiply(const StepContext& context, const RowSelection& selection, const Prepared& prepared,
                           const Range& range, int m_begin, int m_end, int thread) const {
  const Matmul& matmul = matmuls_[range.matmul];
  const Workspace& workspace = context.workspace;
  const bool to_slot = selection.output == nullptr;
  float* y = to_slot ? workspace.slot(matmul.output) : selection.output;
  const size_t y_stride = to_slot ? workspace.slot_stride(matmul.output) : selection.output_stride;
  MatmulArgs args;
  args.weights = matmul.weights.data;
  args.row_bytes = matmul.weights.row_bytes;
  args.K = columns_;
  args.n_begin = range.n_begin;
  args.n_end = range.n_end;
  args.M = m_end - m_begin;
  args.x = prepared.x + m_begin * prepared.x_stride;
  args.x_stride = prepared.x_stride;
  args.xq = prepared.xq + m_begin * context.ops.quantized_row_bytes(columns_);
  args.y = y + m_begin * y_stride;
  args.y_stride = y_stride;
  args.bias = matmul.bias;
  args.accumulate = matmul.accumulate;
  args.scratch = context.workspace.thread(thread).matmul.get();
  context.ops.matmul[static_cast<int>(matmul.weights.type)](args);
}

}  // namespace magnitude
