#include "step.h"

#include "ops.h"

namespace magnitude {
namespace {

std::string fault(const char* what, int index, int64_t value) {
  return std::string(what) + " (index " + std::to_string(index) + ", value " + std::to_string(value) + ")";
}

std::string find_row_fault(const StepArrays& step, const StepLimits& limits) {
  for (int row = 0; row < step.T; ++row) {
    if (step.tokens[row] < 0 || step.tokens[row] >= limits.vocabulary) {
      return fault("a token lies outside the vocabulary", row, step.tokens[row]);
    }
    if (step.positions[row] < 0 || step.positions[row] >= limits.context_length) {
      return fault("a position lies outside the context", row, step.positions[row]);
    }
  }
  for (int r = 0; r < step.R; ++r) {
    const int row = step.output_rows[r];
    if (row < 0 || row >= step.T) return fault("an output row lies outside the step", r, row);
    if (r > 0 && row <= step.output_rows[r - 1]) return fault("output rows do not ascend", r, row);
  }
  return {};
}

std::string find_sequence_fault(const StepArrays& step, const StepLimits& limits) {
  if (step.row_begin[0] != 0) return fault("row_begin does not begin at 0", 0, step.row_begin[0]);
  if (step.row_begin[step.S] != step.T) return fault("row_begin does not end at T", step.S, step.row_begin[step.S]);
  for (int s = 0; s < step.S; ++s) {
    const int begin = step.row_begin[s], end = step.row_begin[s + 1];
    if (begin >= end || end > step.T) return fault("a sequence has no rows", s, begin);
    for (int row = begin + 1; row < end; ++row) {
      if (step.positions[row] != step.positions[row - 1] + 1) {
        return fault("positions of a sequence do not ascend by one", row, step.positions[row]);
      }
    }
    const int pages = step.positions[end - 1] / kPageTokens + 1;
    if (pages > step.pages_per_sequence) return fault("a page table is too short", s, pages);
    const int32_t* table = step.page_tables + static_cast<size_t>(s) * step.pages_per_sequence;
    for (int p = 0; p < pages; ++p) {
      if (table[p] < 0 || table[p] >= limits.pages) return fault("a page lies outside the pool", p, table[p]);
    }
  }
  return {};
}

}  // namespace

std::string find_sampler_fault(const SamplerRow* rows, int R, const SamplerLists& lists, int vocabulary) {
  for (int i = 0; i < lists.window_count; ++i) {
    if (lists.window[i] < 0 || lists.window[i] >= vocabulary) {
      return fault("a token of the window lies outside the vocabulary", i, lists.window[i]);
    }
  }
  for (int i = 0; i < lists.bias_count; ++i) {
    if (lists.bias_ids[i] < 0 || lists.bias_ids[i] >= vocabulary) {
      return fault("a bias lies outside the vocabulary", i, lists.bias_ids[i]);
    }
  }
  if (lists.mask_count > 0 && lists.mask_words != (vocabulary + 31) / 32) {
    return fault("masks have another width than the vocabulary", 0, lists.mask_words);
  }
  for (int r = 0; r < R; ++r) {
    const SamplerRow& row = rows[r];
    if (row.window_begin > row.window_end || row.window_end > static_cast<uint32_t>(lists.window_count)) {
      return fault("a row's window lies outside the windows", r, row.window_end);
    }
    if (row.bias_begin > row.bias_end || row.bias_end > static_cast<uint32_t>(lists.bias_count)) {
      return fault("a row's biases lie outside the biases", r, row.bias_end);
    }
    if ((row.flags & kRowMasked) != 0 && row.mask >= static_cast<uint32_t>(lists.mask_count)) {
      return fault("a row's mask lies outside the masks", r, row.mask);
    }
    if ((row.flags & kRowScore) != 0 && row.target >= static_cast<uint32_t>(vocabulary)) {
      return fault("a target lies outside the vocabulary", r, row.target);
    }
    if (row.top_logprobs > kTopLogprobsMax) return fault("too many top log-probabilities", r, row.top_logprobs);
  }
  return {};
}

std::string find_fault(const StepArrays& step, const StepLimits& limits) {
  if (step.T < 1 || step.T > limits.rows_max) return fault("the step has too few or too many rows", 0, step.T);
  if (step.S < 1 || step.S > limits.sequences_max) return fault("the step has too many sequences", 0, step.S);
  if (step.R > limits.output_rows_max) return fault("the step has too many output rows", 0, step.R);
  std::string found = find_row_fault(step, limits);
  if (found.empty()) found = find_sequence_fault(step, limits);
  if (found.empty() && step.samplers != nullptr) {
    found = find_sampler_fault(step.samplers, step.R, step.lists, limits.vocabulary);
  }
  return found;
}

}  // namespace magnitude
