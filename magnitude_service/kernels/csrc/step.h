// The arrays of one step (StepPlan in engine/batch.py), and the check that makes them safe to follow.
#pragma once

#include <cstdint>
#include <string>

#include "sampler.h"

namespace magnitude {

// T rows of S sequences; R of the rows want logits.
struct StepArrays {
  int T, S, R;
  const int32_t* tokens;          // [T]
  const int32_t* positions;       // [T], ascending by one within a sequence
  const int32_t* row_begin;       // [S+1]
  const int32_t* page_tables;     // [S][pages_per_sequence]
  int pages_per_sequence;
  const int32_t* output_rows;     // [R], ascending
  const SamplerRow* samplers;     // [R], null when nothing is sampled
  SamplerLists lists;
};

struct StepLimits {
  int rows_max, sequences_max, output_rows_max;
  int vocabulary;
  int context_length;
  int pages;                      // of the pool
};

// Empty, or what is wrong with the plan. After an empty answer no index in it leads outside its array, the pool or
// the vocabulary.
std::string find_fault(const StepArrays& step, const StepLimits& limits);

// The part of it that concerns the sampling of R rows.
std::string find_sampler_fault(const SamplerRow* rows, int R, const SamplerLists& lists, int vocabulary);

}  // namespace magnitude
