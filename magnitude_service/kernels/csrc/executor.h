// Runs a compiled program: one call per step, from tokens to chosen tokens.
//
// engine/compilation.py decides what the phases are; native code builds them through the add_ functions and then runs
// them in that order. Memory of weights and pages belongs to the caller, who keeps it as long as the executor.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "attention_phase.h"
#include "matmul_phase.h"
#include "rope_table.h"
#include "row_phases.h"
#include "sampler.h"

namespace magnitude {

struct ExecutorSettings {
  const Ops* ops;
  int threads;
  StepLimits limits;
  PagePool pages;
  int heads;
  std::vector<int> slot_widths;   // float32 per row of each buffer
};

// Where the answers of a step go; R rows each.
struct StepOutputs {
  int32_t* tokens;
  float* logprobs;
  uint8_t* statuses;
  int32_t* top_ids;               // [R][top_count]
  float* top_logprobs;            // [R][top_count]
  int top_count;                  // at least the largest SamplerRow::top_logprobs
};

class Executor {
 public:
  explicit Executor(const ExecutorSettings& settings);

  // Appends a phase. `layer` is where the abort word is looked at: whenever it differs from the phase before.
  void add(int layer, std::unique_ptr<Phase> phase);
  void add_matmuls(int layer, RowSource source, std::vector<Matmul> matmuls);
  void set_logits(RowSource source, const Weights& weights, const float* bias);
  int add_rope_table(const RopeTable& table);   // the table's index; an equal one is shared
  const std::vector<RopeTable>& rope_tables() const { return rope_tables_; }

  // Allocates all memory. Call once, after the last add.
  void finish();

  // False when the step was aborted: its outputs are undefined, and so are the pages of its positions.
  bool step(const StepArrays& step, const StepOutputs& outputs);

  // The logits [R][V] of a step's output rows. Otherwise as step.
  bool logits(const StepArrays& step, float* logits);

  // Makes the step that runs now, or else the next one, end at its next layer. May be called from any thread.
  void abort() { aborted_.store(true, std::memory_order_relaxed); }

  std::string find_fault(const StepArrays& step) const { return magnitude::find_fault(step, settings_.limits); }
  const ExecutorSettings& settings() const { return settings_; }
  const AttentionShape& attention_shape() const { return attention_shape_; }
  size_t workspace_bytes() const;

 private:
  struct PlacedPhase {
    int layer;
    std::unique_ptr<Phase> phase;
  };

  template <class Consume>
  bool run(const StepArrays& step, Consume consume);
  void begin(const StepArrays& step);
  bool take_abort() { return aborted_.load(std::memory_order_relaxed) && aborted_.exchange(false); }
  void sample(const StepArrays& step, const StepOutputs& outputs, int r_begin, int count);

  ExecutorSettings settings_;
  AttentionShape attention_shape_;
  Pool pool_;
  std::vector<PlacedPhase> phases_;
  std::unique_ptr<MatmulPhase> logits_phase_;
  std::vector<RopeTable> rope_tables_;
  WorkspaceNeeds needs_;
  std::unique_ptr<Workspace> workspace_;
  std::unique_ptr<AttentionSchedule> attention_;
  AlignedArray<float> logits_;              // [kLogitsRows][V]
  std::vector<Sampler> samplers_;           // one per thread
  std::vector<int32_t> sequence_of_row_;    // [T] of the step
  std::atomic<bool> aborted_{false};
};

}  // namespace magnitude
