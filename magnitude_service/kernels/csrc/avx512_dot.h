// Integer products on AVX-512 VNNI: the layout of activations and of unpacked weights, and the loop over them.
#pragma once

#include "avx512_lanes.h"
#include "blocks.h"

namespace magnitude {
namespace {

constexpr int kDirectTokens = 4;  // tokens up to which codes are multiplied as they are unpacked
constexpr int kTileTokens = 8;   // tokens that share the weights in registers: 8 sums + 8 codes + 4 in 32 registers

// 32 inputs: q = 256*high + low in two planes of signed bytes, so that vpdpbusd multiplies them by unsigned codes.
// start[] is what the sum of a block begins with to undo the offset of its codes: -offset * sum(q).
struct alignas(32) ActivationBlock {
  int32_t high[8];          // 4 inputs each
  int32_t low[8];
  float scale;
  float scaled_sum;         // float(sum q) * scale
  int32_t start8, start16, start128;
  int32_t start32_halves[2];
  int32_t unused;
};
static_assert(sizeof(ActivationBlock) == 96, "three quarters of two cache lines");

// 16 rows of 32 weights: codes[j] holds inputs 4j…4j+3 of each row, still with their offset.
struct alignas(64) Panel {
  Words codes[8];
  Floats scale;
  Floats second;            // minimum as it is added, or the scale of the second half
};

// What the low plane's sum of a block, or of one of its halves, begins with.
template <class Type, int part>
MAGNITUDE_INLINE Words sum_start(const ActivationBlock& x) {
  constexpr int offset = Type::offset;
  static_assert(offset == 0 || offset == 8 || offset == 16 || offset == 32 || offset == 128, "no sums are kept for it");
  static_assert((offset == 32) == Type::has_halves, "sums of halves are kept for one offset");
  if (offset == 8) return _mm512_set1_epi32(x.start8);
  if (offset == 16) return _mm512_set1_epi32(x.start16);
  if (offset == 32) return _mm512_set1_epi32(x.start32_halves[part]);
  if (offset == 128) return _mm512_set1_epi32(x.start128);
  return _mm512_setzero_si512();
}

MAGNITUDE_INLINE Floats combined(Words high, Words low) {
  return floats_from_words(_mm512_add_epi32(shift_left<8>(high), low));
}

// Keeps what a type unpacks: for many tokens.
template <class Type>
struct PanelSink {
  Panel* panels;

  template <int b, int j>
  MAGNITUDE_INLINE void codes(Words words) {
    panels[b].codes[j] = words;
  }
  template <int b>
  MAGNITUDE_INLINE void finish(Floats scale, Floats second) {
    panels[b].scale = scale;
    if constexpr (Type::has_minimum || Type::has_halves) panels[b].second = second;
  }
  MAGNITUDE_INLINE void advance(int blocks) { panels += blocks; }
};

size_t quantized_row_bytes(int K) { return (static_cast<size_t>(K / kBlock) * sizeof(ActivationBlock) + 63) / 64 * 64; }

// Two vectors of 16 values to one block.
inline void quantize_block(const float* x, ActivationBlock* block) {
  const Floats a = load(x), b = load(x + kLanes);
  const Words magnitude = word(0x7fffffff);
  const Words largest_bits = _mm512_max_epu32(bits_and(_mm512_castps_si512(a), magnitude),
                                              bits_and(_mm512_castps_si512(b), magnitude));
  const uint32_t largest = _mm512_reduce_max_epu32(largest_bits);
  const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest))));
  const float inverse = kActivationMax / amax;
  const bool finite = largest < 0x7f800000, visible = finite && inverse < __builtin_inff();
  const __mmask16 lanes = visible ? 0xffff : 0;
  const Words qa = _mm512_maskz_cvtps_epi32(lanes, multiply(a, broadcast(inverse)));
  const Words qb = _mm512_maskz_cvtps_epi32(lanes, multiply(b, broadcast(inverse)));
  // low is the signed low byte; high takes up its borrow.
  const Words round = word(128);
  __m128i* planes = reinterpret_cast<__m128i*>(block);
  _mm_storeu_si128(planes, _mm512_cvtepi32_epi8(shift_right_signed<8>(_mm512_add_epi32(qa, round))));
  _mm_storeu_si128(planes + 1, _mm512_cvtepi32_epi8(shift_right_signed<8>(_mm512_add_epi32(qb, round))));
  _mm_storeu_si128(planes + 2, _mm512_cvtepi32_epi8(qa));
  _mm_storeu_si128(planes + 3, _mm512_cvtepi32_epi8(qb));
  const int sum_a = _mm512_reduce_add_epi32(qa), sum_b = _mm512_reduce_add_epi32(qb), sum = sum_a + sum_b;
  block->scale = finite ? amax / kActivationMax : __builtin_nanf("");
  block->scaled_sum = static_cast<float>(sum) * block->scale;
  block->start8 = -8 * sum;
  block->start16 = -16 * sum;
  block->start128 = -128 * sum;
  block->start32_halves[0] = -32 * sum_a;
  block->start32_halves[1] = -32 * sum_b;
  block->unused = 0;
}

void quantize(const float* x, size_t x_stride, int M, int K, uint8_t* xq) {
  const size_t row_bytes = quantized_row_bytes(K);
  for (int m = 0; m < M; ++m) {
    ActivationBlock* blocks = reinterpret_cast<ActivationBlock*>(xq + m * row_bytes);
    for (int b = 0; b < K / kBlock; ++b) quantize_block(x + m * x_stride + b * kBlock, blocks + b);
  }
}

// Multiplies what a type unpacks by the activations of T tokens at once, nothing kept but sums: for few tokens.
template <class Type, int T>
struct DotSink {
  static constexpr int parts = Type::has_halves ? 2 : 1, part_codes = 8 / parts;
  const uint8_t* xq;
  size_t x_bytes;
  Floats sum[T];
  Words high[T], low[T];    // of the part that is being handed
  Floats dot[parts][T];     // of the parts of the block so far

  MAGNITUDE_INLINE DotSink(const uint8_t* activations, size_t row_bytes) : xq(activations), x_bytes(row_bytes) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sum[t] = broadcast(0);
  }
  MAGNITUDE_INLINE const ActivationBlock& block(int t, int b) const {
    return reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes)[b];
  }
  template <int b, int j>
  MAGNITUDE_INLINE void codes(Words words) {
    constexpr int part = j / part_codes;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = block(t, b);
      if constexpr (j % part_codes == 0) {
        high[t] = _mm512_setzero_si512();
        low[t] = sum_start<Type, part>(x);
      }
      high[t] = _mm512_dpbusd_epi32(high[t], words, _mm512_set1_epi32(x.high[j]));
      low[t] = _mm512_dpbusd_epi32(low[t], words, _mm512_set1_epi32(x.low[j]));
      if constexpr (j % part_codes == part_codes - 1) dot[part][t] = combined(high[t], low[t]);
    }
  }
  template <int b>
  MAGNITUDE_INLINE void finish(Floats scale, Floats second) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = block(t, b);
      const Floats x_scale = broadcast(x.scale);
      sum[t] = fma(dot[0][t], multiply(scale, x_scale), sum[t]);
      if constexpr (parts == 2) sum[t] = fma(dot[1][t], multiply(second, x_scale), sum[t]);
      if constexpr (Type::has_minimum) sum[t] = fma(second, broadcast(x.scaled_sum), sum[t]);
    }
  }
  MAGNITUDE_INLINE void advance(int blocks) { xq += blocks * sizeof(ActivationBlock); }
};

// sum (u - o) * q over codes [first, first + count) for 16 rows; `low` begins with -o * sum(q).
template <int first, int count>
MAGNITUDE_INLINE Floats block_dot(const Words* codes, const ActivationBlock& x, Words low) {
  Words high = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = first; j < first + count; ++j) {
    high = _mm512_dpbusd_epi32(high, codes[j], _mm512_set1_epi32(x.high[j]));
    low = _mm512_dpbusd_epi32(low, codes[j], _mm512_set1_epi32(x.low[j]));
  }
  return combined(high, low);
}

// Adds `count` blocks of 16 rows to the sums of T tokens, whose activations lie x_bytes apart.
template <class Type, int T>
inline void accumulate(const Panel* panels, int count, const uint8_t* xq, size_t x_bytes, Floats* sums) {
  Floats sum[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[t] = sums[t];
  for (int b = 0; b < count; ++b) {
    const Panel& panel = panels[b];
    Words codes[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) codes[j] = panel.codes[j];
    const Floats scale = panel.scale, second = panel.second;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes)[b];
      const Floats x_scale = broadcast(x.scale);
      if constexpr (Type::has_halves) {
        const Floats first_dot = block_dot<0, 4>(codes, x, sum_start<Type, 0>(x));
        const Floats second_dot = block_dot<4, 4>(codes, x, sum_start<Type, 1>(x));
        sum[t] = fma(first_dot, multiply(scale, x_scale), sum[t]);
        sum[t] = fma(second_dot, multiply(second, x_scale), sum[t]);
      } else {
        const Floats dot = block_dot<0, 8>(codes, x, sum_start<Type, 0>(x));
        sum[t] = fma(dot, multiply(scale, x_scale), sum[t]);
      }
      if (Type::has_minimum) sum[t] = fma(second, broadcast(x.scaled_sum), sum[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sums[t] = sum[t];
}

}  // namespace
}  // namespace magnitude
