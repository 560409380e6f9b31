#include "row_phases.h"

#include <cstring>

namespace magnitude {
namespace {

float* row_of(const Workspace& workspace, int slot, int row) {
  return workspace.slot(slot) + row * workspace.slot_stride(slot);
}

}  // namespace

void EmbedPhase::run(const StepContext& context) const {
  const auto dequantize = context.ops.dequantize_row[static_cast<int>(embedding_.type)];
  for_each_row(context.pool, context.step.T, [&](int, int row) {
    dequantize(embedding_.row(context.step.tokens[row]), embedding_.columns, row_of(context.workspace, output_, row));
  });
}

void NormPhase::run(const StepContext& context) const {
  for_each_row(context.pool, context.step.T, [&](int, int row) {
    context.ops.rms_norm(row_of(context.workspace, input_, row), weight_, epsilon_, width_,
                         row_of(context.workspace, output_, row));
  });
}

void GatedActivationPhase::run(const StepContext& context) const {
  for_each_row(context.pool, context.step.T, [&](int, int row) {
    context.ops.silu_multiply(row_of(context.workspace, gate_, row), row_of(context.workspace, up_, row), width_,
                              row_of(context.workspace, output_, row));
  });
}

void AddPhase::run(const StepContext& context) const {
  for_each_row(context.pool, context.step.T, [&](int, int row) {
    float* output = row_of(context.workspace, output_, row);
    std::memmove(output, row_of(context.workspace, a_, row), width_ * sizeof(float));
    context.ops.add(output, row_of(context.workspace, b_, row), width_);
  });
}

}  // namespace magnitude
