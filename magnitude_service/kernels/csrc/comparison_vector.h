// Comparisons of norms, activations, rotations and sums.
#pragma once

#include "comparison_inputs.h"

namespace magnitude {
namespace {

// compare(count) for lengths with and without a rest.
template <class Compare>
bool for_lengths(const Comparison& c, Compare&& compare) {
  if (!c.thorough) return compare(16) && compare(45);
  for (int count : {1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 100, 576, 1000}) {
    if (!compare(count)) return false;
  }
  return true;
}

bool rms_norm_holds(Comparison& c) {
  return for_lengths(c, [&](int count) {
    const float *x = c.drawn(kInputs, count), *w = c.drawn(kInputs2, count);
    float *y = c.floats(kOutputs, count), *expected = c.floats(kOracleOutputs, count);
    c.table.rms_norm(x, w, 1e-5f, count, y);
    c.oracle.rms_norm(x, w, 1e-5f, count, expected);
    return same_bits(y, expected, count);
  });
}

bool silu_multiply_holds(Comparison& c) {
  return for_lengths(c, [&](int count) {
    float* gate = c.drawn(kInputs, count);
    for (int i = 0; i < count; i += 3) gate[i] *= 100.0f;   // where the exponential ends
    if (count > 40) gate[40] = -HUGE_VALF, gate[39] = std::nanf("");
    const float* up = c.drawn(kInputs2, count);
    float *y = c.floats(kOutputs, count), *expected = c.floats(kOracleOutputs, count);
    c.table.silu_multiply(gate, up, count, y);
    c.oracle.silu_multiply(gate, up, count, expected);
    return same_bits(y, expected, count);
  });
}

bool add_holds(Comparison& c) {
  return for_lengths(c, [&](int count) {
    float *x = c.drawn(kOutputs, count), *expected = c.floats(kOracleOutputs, count);
    const float* y = c.drawn(kInputs, count);
    std::memcpy(expected, x, count * sizeof(float));
    c.table.add(x, y, count);
    c.oracle.add(expected, y, count);
    return same_bits(x, expected, count);
  });
}

template <bool halves>
bool rope_holds(Comparison& c) {
  return for_lengths(c, [&](int count) {
    const int dimensions = 2 * count, size = dimensions + 3;   // the last three are not rotated
    float *head = c.drawn(kOutputs, size), *expected = c.floats(kOracleOutputs, size);
    const float* angles = c.drawn(kInputs, dimensions);
    std::memcpy(expected, head, size * sizeof(float));
    (halves ? c.table.rope_halves : c.table.rope_pairs)(head, angles, dimensions);
    (halves ? c.oracle.rope_halves : c.oracle.rope_pairs)(expected, angles, dimensions);
    return same_bits(head, expected, size);
  });
}

bool softmax_statistics_holds(Comparison& c) {
  return for_lengths(c, [&](int count) {
    float* x = c.drawn(kInputs, count);
    for (const float special : {0.0f, -HUGE_VALF, HUGE_VALF, std::nanf("")}) {
      if (special != 0.0f) x[count / 2] = special;
      float statistics[2] = {}, expected[2] = {};
      const bool sound = c.table.softmax_statistics(x, count, statistics, statistics + 1);
      if (sound != c.oracle.softmax_statistics(x, count, expected, expected + 1)) return false;
      if (sound && !same_bits(statistics, expected, 2)) return false;
    }
    return true;
  });
}

}  // namespace
}  // namespace magnitude
