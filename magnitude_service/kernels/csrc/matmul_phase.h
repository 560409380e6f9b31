// Matmuls that read the same rows, as one phase: q, k and v; gate and up; an output projection; the logits.
//
// The rows are prepared once for all of them (normalised or activated, then quantised). Few rows are prepared by every
// thread for itself, which costs less than a barrier; many rows are prepared in a phase of their own, shared over the
// threads. Both give the same bits.
#pragma once

#include <vector>

#include "phase.h"

namespace magnitude {

// How the rows of a matmul come about.
struct RowSource {
  enum class Kind { kPlain, kNorm, kGated };
  Kind kind;
  int input;              // slot of x, or of gate
  int up;                 // kGated: slot of up
  const float* weight;    // kNorm
  float epsilon;          // kNorm
};

struct Matmul {
  Weights weights;
  const float* bias;      // [N] or null
  int output;             // slot
  bool accumulate;        // add to what the slot holds
};

// Which rows a run takes and where its results go, where these are not the slots' own.
struct RowSelection {
  const int32_t* rows;    // [count] rows of the slots, or null: 0 … count-1
  int count;
  float* output;          // [count][output_stride] instead of the slot of the only matmul, or null
  size_t output_stride;
};

// Rows of weights that one chunk takes with `M` rows of activations: a multiple of kRowGroup.
int chunk_rows(size_t row_bytes, int M);

class MatmulPhase : public Phase {
 public:
  MatmulPhase(RowSource source, std::vector<Matmul> matmuls);

  void run(const StepContext& context) const override;
  void run_rows(const StepContext& context, const RowSelection& selection) const;

  // Adds what this phase wants of the workspace.
  void add_needs(const Ops& ops, WorkspaceNeeds* needs) const;

 private:
  // A range of output rows of one matmul.
  struct Range {
    int matmul;
    int n_begin, n_end;
  };
  struct Prepared {
    const float* x;
    size_t x_stride;
    const uint8_t* xq;
  };

  static std::vector<Range> split(const std::vector<Matmul>& matmuls, int M);
  bool is_private(int rows) const;
  void prepare_row(const StepContext& context, int row, float* x, uint8_t* xq) const;
  void prepare_privately(const StepContext& context, const RowSelection& selection, int thread) const;
  Prepared prepare_shared(const StepContext& context, const RowSelection& selection) const;
  void multiply(const StepContext& context, const RowSelection& selection, const Prepared& prepared,
                const Range& range, int m_begin, int m_end, int thread) const;

  RowSource source_;
  std::vector<Matmul> matmuls_;
  int columns_;
  bool any_float_ = false;
  bool any_quantised_ = false;
  std::vector<Range> few_rows_ranges_;
  std::vector<Range> many_rows_ranges_;
};

}  // namespace magnitude
