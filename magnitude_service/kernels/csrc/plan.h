// A StepPlan (engine/batch.py) as it comes from Python, and the checks of everything that does.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "step.h"

namespace magnitude {

template <class T>
using Array1 = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Array2 = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array1<const float>;

// Raises AssertionError, unless `holds`: what reaches native code wrong is our own mistake.
void check(bool holds, const std::string& message);

template <class T>
int count_of(const Array1<T>& array) {
  check(array.size() <= INT32_MAX, "an array is too long");
  return static_cast<int>(array.size());
}

// What penalties, biases and masks of a step's rows point into. It keeps the arrays alive.
struct PlanLists {
  PlanLists(Array1<const int32_t> window, Array1<const int32_t> bias_ids, Floats bias_values,
            Array2<const uint32_t> masks);

  Array1<const int32_t> window, bias_ids;
  Floats bias_values;
  Array2<const uint32_t> masks;
  SamplerLists lists;
};

// SAMPLER_ROW records as bytes, copied, because NumPy promises no alignment.
std::vector<SamplerRow> sampler_rows(const Array1<const uint8_t>& records, size_t count);

// All of a plan: lengths that must agree do. Indices are checked by the executor, which knows their limits.
struct Plan {
  Plan(Array1<const int32_t> tokens, Array1<const int32_t> positions, Array1<const int32_t> row_begin,
       Array2<const int32_t> page_tables, Array1<const int32_t> output_rows, const Array1<const uint8_t>& samplers,
       const PlanLists& lists);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  Array1<const int32_t> tokens, positions, row_begin;
  Array2<const int32_t> page_tables;
  Array1<const int32_t> output_rows;
  std::vector<SamplerRow> samplers;
  PlanLists lists;
  StepArrays arrays;
};

}  // namespace magnitude
