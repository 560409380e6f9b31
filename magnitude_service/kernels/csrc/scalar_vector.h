// Everything that is neither matrix product nor attention, in plain C++: the oracle of lanes_vector.h.
#pragma once

#include <cmath>
#include <initializer_list>

#include "exponential.h"
#include "scalar_matmul.h"

namespace magnitude {
namespace {

float exponential(float x) {
  const float clamped = x < kExpLow ? kExpLow : x > kExpHigh ? kExpHigh : x;
  const float shifted = std::fmaf(clamped, kLog2E, kExpRound);
  const float whole = shifted - kExpRound;
  float r = std::fmaf(whole, -kLn2High, clamped);
  r = std::fmaf(whole, -kLn2Low, r);
  float p = kExp6;
  for (float coefficient : {kExp5, kExp4, kExp3, kExp2, 1.0f, 1.0f}) p = std::fmaf(p, r, coefficient);
  if (p != p) return p;
  const int n = static_cast<int>(whole), half = n >> 1;
  return p * float_from_bits(static_cast<uint32_t>(half + 127) << 23) *
         float_from_bits(static_cast<uint32_t>(n - half + 127) << 23);
}

void rms_norm(const float* x, const float* w, float epsilon, int E, float* y) {
  float lanes[16] = {};
  for (int e = 0; e < E; ++e) lanes[e % 16] = std::fmaf(x[e], x[e], lanes[e % 16]);
  const float inverse = 1.0f / std::sqrt(tree_sum(lanes) / static_cast<float>(E) + epsilon);
  for (int e = 0; e < E; ++e) y[e] = x[e] * inverse * w[e];
}

void silu_multiply(const float* gate, const float* up, int F, float* y) {
  for (int f = 0; f < F; ++f) y[f] = gate[f] / (1.0f + exponential(-gate[f])) * up[f];
}

void add_rows(float* x, const float* y, int E) {
  for (int e = 0; e < E; ++e) x[e] = x[e] + y[e];
}

void rotate(float* first, float* second, float cosine, float sine) {
  const float a = *first, b = *second;
  *first = a * cosine - b * sine;
  *second = a * sine + b * cosine;
}

void rope_pairs(float* head, const float* table, int dimensions) {
  for (int i = 0; i < dimensions / 2; ++i) rotate(head + 2 * i, head + 2 * i + 1, table[2 * i], table[2 * i + 1]);
}

void rope_halves(float* head, const float* table, int dimensions) {
  const int half = dimensions / 2;
  for (int i = 0; i < half; ++i) rotate(head + i, head + i + half, table[2 * i], table[2 * i + 1]);
}

bool softmax_statistics(const float* x, int V, float* max, float* sum) {
  float largest = -HUGE_VALF;
  bool sound = true;
  for (int v = 0; v < V; ++v) {
    sound = sound && x[v] < HUGE_VALF;   // false for +inf and for NaN
    largest = x[v] > largest ? x[v] : largest;
  }
  if (!sound || largest == -HUGE_VALF) return false;
  *max = largest + 0.0f;
  float lanes[16] = {};
  for (int v = 0; v < V; ++v) lanes[v % 16] = lanes[v % 16] + exponential(x[v] - *max);
  *sum = tree_sum(lanes);
  return true;
}

}  // namespace
}  // namespace magnitude
