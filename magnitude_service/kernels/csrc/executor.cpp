#include "executor.h"

#include <algorithm>

namespace magnitude {
namespace {

// Output rows whose logits exist at once: of a vocabulary of 150,000 they are 10 MB.
constexpr int kLogitsRows = 16;

}  // namespace

Executor::Executor(const ExecutorSettings& settings)
    : settings_(settings),
      attention_shape_{settings.heads, settings.pages.key_value_heads, settings.pages.head_size},
      pool_(settings.threads) {}

void Executor::add(int layer, std::unique_ptr<Phase> phase) { phases_.push_back({layer, std::move(phase)}); }

void Executor::add_matmuls(int layer, RowSource source, std::vector<Matmul> matmuls) {
  auto phase = std::make_unique<MatmulPhase>(source, std::move(matmuls));
  phase->add_needs(*settings_.ops, &needs_);
  add(layer, std::move(phase));
}

void Executor::set_logits(RowSource source, const Weights& weights, const float* bias) {
  logits_phase_ = std::make_unique<MatmulPhase>(source, std::vector<Matmul>{{weights, bias, 0, false}});
  logits_phase_->add_needs(*settings_.ops, &needs_);
}

int Executor::add_rope_table(const RopeTable& table) {
  const auto known = std::find(rope_tables_.begin(), rope_tables_.end(), table);
  if (known != rope_tables_.end()) return static_cast<int>(known - rope_tables_.begin());
  rope_tables_.push_back(table);
  needs_.angle_counts.push_back(table.angles());
  return static_cast<int>(rope_tables_.size()) - 1;
}

void Executor::finish() {
  const StepLimits& limits = settings_.limits;
  const int threads = pool_.threads();
  workspace_ = std::make_unique<Workspace>(*settings_.ops, threads, limits.rows_max, settings_.slot_widths, needs_);
  attention_ = std::make_unique<AttentionSchedule>(*settings_.ops, attention_shape_, limits, threads);
  logits_.allocate(static_cast<size_t>(std::min(kLogitsRows, limits.output_rows_max)) * limits.vocabulary);
  for (int thread = 0; thread < threads; ++thread) samplers_.emplace_back(limits.vocabulary);
  sequence_of_row_.resize(limits.rows_max);
}

size_t Executor::workspace_bytes() const {
  size_t total = workspace_->bytes() + attention_->bytes() + logits_.bytes();
  for (const Sampler& sampler : samplers_) total += sampler.bytes();
  return total;
}

bool Executor::step(const StepArrays& step, const StepOutputs& outputs) {
  return run(step, [&](int r_begin, int count) { sample(step, outputs, r_begin, count); });
}

bool Executor::logits(const StepArrays& step, float* logits) {
  const size_t V = settings_.limits.vocabulary;
  return run(step, [&](int r_begin, int count) {
    std::copy(logits_.get(), logits_.get() + count * V, logits + r_begin * V);
  });
}

// Runs all phases, and consume(r_begin, count) over each group of output rows once logits_ holds theirs.
template <class Consume>
bool Executor::run(const StepArrays& step, Consume consume) {
  begin(step);
  const StepContext context{*settings_.ops, pool_, *workspace_, step, *attention_, sequence_of_row_.data()};
  const PlacedPhase* before = nullptr;
  for (const PlacedPhase& placed : phases_) {
    if ((before == nullptr || before->layer != placed.layer) && take_abort()) return false;
    placed.phase->run(context);
    before = &placed;
  }
  for (int r_begin = 0; r_begin < step.R; r_begin += kLogitsRows) {
    if (take_abort()) return false;
    const int count = std::min(kLogitsRows, step.R - r_begin);
    const size_t V = settings_.limits.vocabulary;
    logits_phase_->run_rows(context, {step.output_rows + r_begin, count, logits_.get(), V});
    consume(r_begin, count);
  }
  return true;
}

// What the phases of all layers share: each row's sequence and angles, and the cut of the attention.
void Executor::begin(const StepArrays& step) {
  pool_.wake();
  for (int s = 0; s < step.S; ++s) {
    std::fill(sequence_of_row_.begin() + step.row_begin[s], sequence_of_row_.begin() + step.row_begin[s + 1], s);
  }
  attention_->plan(step);
  for (int index = 0; index < static_cast<int>(rope_tables_.size()); ++index) {
    const RopeTable& table = rope_tables_[index];
    float* rows = workspace_->rope_table(index);
    for_each_row(pool_, step.T, [&](int, int row) {
      table.fill(step.positions[row], rows + static_cast<size_t>(row) * 2 * table.angles());
    });
  }
}

void Executor::sample(const StepArrays& step, const StepOutputs& outputs, int r_begin, int count) {
  pool_.run(count, [&](int thread, int index) {
    const int r = r_begin + index;
    const float* row = logits_.get() + static_cast<size_t>(index) * settings_.limits.vocabulary;
    const size_t top = static_cast<size_t>(r) * outputs.top_count;
    samplers_[thread].choose(*settings_.ops, row, step.samplers[r], step.lists,
                             {outputs.tokens + r, outputs.logprobs + r, outputs.statuses + r, outputs.top_ids + top,
                              outputs.top_logprobs + top});
  });
}

}  // namespace magnitude
