// Integer products on AVX2: the layout of activations and of unpacked weights, and the loop over them.
//
// vpmaddwd multiplies 16-bit activations by 16-bit weights exactly; there is no need of two planes.
#pragma once

#include "avx2_lanes.h"
#include "blocks.h"

namespace magnitude {
namespace {

constexpr int kDirectTokens = 2;   // tokens up to which codes are multiplied as they are unpacked
constexpr int kTileTokens = 4;     // tokens that share a load of weights: 8 integer sums + 2 codes + 2 in 16 registers

// 32 inputs. A dword holds two of the four inputs 4j…4j+3: pairs[2j] the first and third, pairs[2j+1] the others.
struct ActivationBlock {
  int32_t pairs[16];
  float scale;
  float scaled_sum;         // float(sum q) * scale
};
static_assert(sizeof(ActivationBlock) == 72, "the blocks of a row are adjacent");

// 16 rows of 32 weights, codes as 16-bit integers without their offset, in the order of ActivationBlock.
struct alignas(64) Panel {
  Words pairs[16];
  Floats scale;
  Floats second;            // minimum as it is added, or the scale of the second half
};

// The pairs of four inputs of 16 rows: the first and third, or the second and fourth, offset removed.
template <int offset>
MAGNITUDE_INLINE Words even_codes(Words codes) {
  const __m256i byte = _mm256_set1_epi32(0x00ff00ff), excess = _mm256_set1_epi16(offset);
  const Words wide = {_mm256_and_si256(codes.a, byte), _mm256_and_si256(codes.b, byte)};
  if (offset == 0) return wide;
  return {_mm256_sub_epi16(wide.a, excess), _mm256_sub_epi16(wide.b, excess)};
}
template <int offset>
MAGNITUDE_INLINE Words odd_codes(Words codes) {
  const __m256i excess = _mm256_set1_epi16(offset);
  const Words wide = {_mm256_srli_epi16(codes.a, 8), _mm256_srli_epi16(codes.b, 8)};
  if (offset == 0) return wide;
  return {_mm256_sub_epi16(wide.a, excess), _mm256_sub_epi16(wide.b, excess)};
}

MAGNITUDE_INLINE Words add_products(Words sums, Words codes, __m256i x) {
  return {_mm256_add_epi32(sums.a, _mm256_madd_epi16(codes.a, x)),
          _mm256_add_epi32(sums.b, _mm256_madd_epi16(codes.b, x))};
}

// Keeps what a type unpacks: for many tokens.
template <class Type>
struct PanelSink {
  Panel* panels;

  template <int b, int j>
  MAGNITUDE_INLINE void codes(Words words) {
    panels[b].pairs[2 * j] = even_codes<Type::offset>(words);
    panels[b].pairs[2 * j + 1] = odd_codes<Type::offset>(words);
  }
  template <int b>
  MAGNITUDE_INLINE void finish(Floats scale, Floats second) {
    panels[b].scale = scale;
    if constexpr (Type::has_minimum || Type::has_halves) panels[b].second = second;
  }
  MAGNITUDE_INLINE void advance(int blocks) { panels += blocks; }
};

// Multiplies what a type unpacks by the activations of T tokens at once, nothing kept but sums: for few tokens.
template <class Type, int T>
struct DotSink {
  static constexpr int parts = Type::has_halves ? 2 : 1, part_codes = 8 / parts;
  const uint8_t* xq;
  size_t x_bytes;
  Floats sum[T];
  Words dots[T];            // of the part that is being handed
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
    const Words even = even_codes<Type::offset>(words), odd = odd_codes<Type::offset>(words);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = block(t, b);
      if constexpr (j % part_codes == 0) dots[t] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      dots[t] = add_products(dots[t], even, _mm256_set1_epi32(x.pairs[2 * j]));
      dots[t] = add_products(dots[t], odd, _mm256_set1_epi32(x.pairs[2 * j + 1]));
      if constexpr (j % part_codes == part_codes - 1) dot[j / part_codes][t] = floats_from_words(dots[t]);
    }
  }
  template <int b>
  MAGNITUDE_INLINE void finish(Floats scale, Floats second) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = block(t, b);
      const Floats x_scale = broadcast(x.scale);
      sum[t] = add(sum[t], multiply(dot[0][t], multiply(scale, x_scale)));
      if constexpr (parts == 2) sum[t] = add(sum[t], multiply(dot[1][t], multiply(second, x_scale)));
      if constexpr (Type::has_minimum) sum[t] = add(sum[t], multiply(second, broadcast(x.scaled_sum)));
    }
  }
  MAGNITUDE_INLINE void advance(int blocks) { xq += blocks * sizeof(ActivationBlock); }
};

size_t quantized_row_bytes(int K) { return (static_cast<size_t>(K / kBlock) * sizeof(ActivationBlock) + 63) / 64 * 64; }

inline uint32_t largest_word(__m256i v) {
  __m128i by4 = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  by4 = _mm_max_epu32(by4, _mm_shuffle_epi32(by4, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(by4, _mm_shuffle_epi32(by4, 0xb1))));
}

inline int sum_words(__m256i v) {
  __m128i by4 = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  by4 = _mm_add_epi32(by4, _mm_shuffle_epi32(by4, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(by4, _mm_shuffle_epi32(by4, 0xb1)));
}

inline void quantize_block(const float* x, ActivationBlock* block) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest_bits = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * i));
    largest_bits = _mm256_max_epu32(largest_bits, _mm256_and_si256(bits, magnitude));
  }
  const uint32_t largest = largest_word(largest_bits);
  const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest))));
  const float inverse = kActivationMax / amax;
  const bool finite = largest < 0x7f800000, visible = finite && inverse < __builtin_inff();
  const __m256i mask = _mm256_set1_epi32(visible ? -1 : 0);
  __m256i sums = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse));
    const __m256i q = _mm256_and_si256(_mm256_cvtps_epi32(scaled), mask);
    sums = _mm256_add_epi32(sums, q);
    // q0 q1 q2 q3 to the dwords (q0, q2) and (q1, q3).
    const __m256i low = _mm256_and_si256(_mm256_shuffle_epi32(q, 0x44), _mm256_set1_epi32(0xffff));
    const __m256i high = _mm256_slli_epi32(_mm256_shuffle_epi32(q, 0xee), 16);
    const __m256i pairs = _mm256_or_si256(low, high);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(block->pairs + 4 * i), _mm256_castsi256_si128(pairs));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(block->pairs + 4 * i + 2), _mm256_extracti128_si256(pairs, 1));
  }
  block->scale = finite ? amax / kActivationMax : __builtin_nanf("");
  block->scaled_sum = static_cast<float>(sum_words(sums)) * block->scale;
}

void quantize(const float* x, size_t x_stride, int M, int K, uint8_t* xq) {
  const size_t row_bytes = quantized_row_bytes(K);
  for (int m = 0; m < M; ++m) {
    ActivationBlock* blocks = reinterpret_cast<ActivationBlock*>(xq + m * row_bytes);
    for (int b = 0; b < K / kBlock; ++b) quantize_block(x + m * x_stride + b * kBlock, blocks + b);
  }
}

inline const ActivationBlock& block_of(const uint8_t* xq, size_t x_bytes, int t, int b) {
  return reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes)[b];
}

// Adds the products of pairs [first, first + count) of block b to the sums of T tokens.
template <int T, int first, int count>
inline void accumulate_pairs(const Panel& panel, Floats scale, const uint8_t* xq, size_t x_bytes, int b, Floats* sum) {
  Words dots[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) dots[t] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 16
  for (int p = first; p < first + count; ++p) {
    const Words codes = panel.pairs[p];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      dots[t] = add_products(dots[t], codes, _mm256_set1_epi32(block_of(xq, x_bytes, t, b).pairs[p]));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Floats both = multiply(scale, broadcast(block_of(xq, x_bytes, t, b).scale));
    sum[t] = add(sum[t], multiply(floats_from_words(dots[t]), both));
  }
}

// Adds `count` blocks of 16 rows to the sums of T tokens, whose activations lie x_bytes apart.
template <class Type, int T>
inline void accumulate(const Panel* panels, int count, const uint8_t* xq, size_t x_bytes, Floats* sums) {
  for (int b = 0; b < count; ++b) {
    const Panel& panel = panels[b];
    if constexpr (Type::has_halves) {
      accumulate_pairs<T, 0, 8>(panel, panel.scale, xq, x_bytes, b, sums);
      accumulate_pairs<T, 8, 8>(panel, panel.second, xq, x_bytes, b, sums);
    } else {
      accumulate_pairs<T, 0, 16>(panel, panel.scale, xq, x_bytes, b, sums);
    }
    if constexpr (Type::has_minimum) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const Floats scaled_sum = broadcast(block_of(xq, x_bytes, t, b).scaled_sum);
        sums[t] = add(sums[t], multiply(panel.second, scaled_sum));
      }
    }
  }
}

}  // namespace
}  // namespace magnitude
