// Norms, activations, rotations and sums over 16 lanes. Included after the lanes of an instruction set.
#pragma once

#include "ops.h"

namespace magnitude {
namespace {

inline Floats load_part(const float* from, int count) { return count == kLanes ? load(from) : load_first(from, count); }

inline void store_part(float* to, Floats value, int count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    store_first(to, value, count);
  }
}

// body(i, lanes) for every vector of `count` elements; the last may have fewer than 16 lanes.
template <class Body>
inline void over_vectors(int count, Body&& body) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, count - i);
}

inline Floats exponential(Floats x) {
  const Floats clamped = minimum(broadcast(kExpHigh), maximum(broadcast(kExpLow), x));
  const Floats shifted = fma(clamped, broadcast(kLog2E), broadcast(kExpRound));
  const Floats whole = subtract(shifted, broadcast(kExpRound));
  Floats r = fma(whole, broadcast(-kLn2High), clamped);
  r = fma(whole, broadcast(-kLn2Low), r);
  Floats p = fma(broadcast(kExp6), r, broadcast(kExp5));
  p = fma(p, r, broadcast(kExp4));
  p = fma(p, r, broadcast(kExp3));
  p = fma(p, r, broadcast(kExp2));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return scale_by_power(p, whole, shifted);
}

inline float exponential(float x) { return first_lane(exponential(broadcast(x))); }

void rms_norm(const float* x, const float* w, float epsilon, int E, float* y) {
  Floats squares = broadcast(0);
  over_vectors(E, [&](int i, int lanes) {
    const Floats value = load_part(x + i, lanes);   // lanes without an element add a square of 0
    squares = fma(value, value, squares);
  });
  const float inverse = 1.0f / __builtin_sqrtf(tree_sum(squares) / static_cast<float>(E) + epsilon);
  over_vectors(E, [&](int i, int lanes) {
    const Floats scaled = multiply(load_part(x + i, lanes), broadcast(inverse));
    store_part(y + i, multiply(scaled, load_part(w + i, lanes)), lanes);
  });
}

void silu_multiply(const float* gate, const float* up, int F, float* y) {
  over_vectors(F, [&](int i, int lanes) {
    const Floats g = load_part(gate + i, lanes);
    const Floats negative = flip_sign(g);
    const Floats activated = divide(g, add(broadcast(1.0f), exponential(negative)));
    store_part(y + i, multiply(activated, load_part(up + i, lanes)), lanes);
  });
}

void add_rows(float* x, const float* y, int E) {
  over_vectors(E, [&](int i, int lanes) {
    store_part(x + i, add(load_part(x + i, lanes), load_part(y + i, lanes)), lanes);
  });
}

inline void rotate(Floats* a, Floats* b, Floats cosine, Floats sine) {
  const Floats first = subtract(multiply(*a, cosine), multiply(*b, sine));
  *b = add(multiply(*a, sine), multiply(*b, cosine));
  *a = first;
}

inline void rotate(float* first, float* second, float cosine, float sine) {
  const float a = *first, b = *second;
  *first = a * cosine - b * sine;
  *second = a * sine + b * cosine;
}

void rope_pairs(float* head, const float* table, int dimensions) {
  int i = 0;
  for (; i + kLanes <= dimensions / 2; i += kLanes) {
    Floats a, b, cosine, sine;
    load_pairs(head + 2 * i, &a, &b);
    load_pairs(table + 2 * i, &cosine, &sine);
    rotate(&a, &b, cosine, sine);
    store_pairs(head + 2 * i, a, b);
  }
  for (; i < dimensions / 2; ++i) rotate(head + 2 * i, head + 2 * i + 1, table[2 * i], table[2 * i + 1]);
}

void rope_halves(float* head, const float* table, int dimensions) {
  const int half = dimensions / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Floats a = load(head + i), b = load(head + i + half), cosine, sine;
    load_pairs(table + 2 * i, &cosine, &sine);
    rotate(&a, &b, cosine, sine);
    store(head + i, a);
    store(head + i + half, b);
  }
  for (; i < half; ++i) rotate(head + i, head + i + half, table[2 * i], table[2 * i + 1]);
}

bool softmax_statistics(const float* x, int V, float* max, float* sum) {
  const Floats nothing = broadcast(-__builtin_inff());
  Floats maxima = nothing;
  bool sound = true;
  over_vectors(V, [&](int i, int lanes) {
    const Floats value = keep_first(load_part(x + i, lanes), lanes, nothing);
    sound = sound && all_below(value, __builtin_inff());   // false for +inf and for NaN
    maxima = maximum(value, maxima);
  });
  const float top = largest(maxima);
  if (!sound || top == -__builtin_inff()) return false;
  *max = top + 0.0f;
  Floats sums = broadcast(0);
  over_vectors(V, [&](int i, int lanes) {
    const Floats e = exponential(subtract(load_part(x + i, lanes), broadcast(*max)));
    sums = add(sums, keep_first(e, lanes, broadcast(0)));
  });
  *sum = tree_sum(sums);
  return true;
}

}  // namespace
}  // namespace magnitude
