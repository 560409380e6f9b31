// Integer products on AVX2: the layout of activations and of unpacked weights, and the loop over them.
//
// vpmaddwd multiplies 16-bit activations by 16-bit weights exactly; there is no need of two planes.
#pragma once

#include "avx2_lanes.h"
#include "blocks.h"

namespace magnitude {
namespace {

constexpr int kDirectTokens = 4;   // tokens up to which codes are multiplied as they are unpacked …
template <class Type>
constexpr int direct_tokens = Type::bytes == kBytesQ5_K ? 2 : Type::bytes == kBytesQ6_K ? 3 : kDirectTokens;   // … of a type
constexpr int kTileTokens = 4;     // tokens that share a load of weights: 8 integer sums + 2 codes + 2 in 16 registers
constexpr int kShiftlessTokens = 2;   // tokens for which nibbles are multiplied where they lie: a sum for each place
constexpr int kFewTokens = 32;         // tokens up to which a panel is a part of a row …
constexpr int kFewTokensBlocks = 16;   // … of so many blocks: 18 KiB of the first-level cache
constexpr bool kTakesNibbles = true;
template <class Sink>
using HeldSink = Sink;             // while a part is unpacked, in registers

// 32 inputs. A dword holds two of the four inputs 4j…4j+3: pairs[2j] the first and third, pairs[2j+1] the others.
struct ActivationBlock {
  int32_t pairs[16];
  float scale;
  float scaled_sum;         // float(sum q) * scale
  int32_t sum_by_32, first_sum_by_32;   // 32 times the sum of q, and of the first half's: Q6_K's offset needs no shift
};
static_assert(sizeof(ActivationBlock) == 80, "the blocks of a row are adjacent");

// 16 rows of 32 weights, codes as 16-bit integers without their offset, in the order of ActivationBlock; rows 0…7, 8…15.
struct alignas(64) Panel {
  RowWords pairs[16][2];
  RowFloats scale[2];
  RowFloats second[2];      // minimum as it is added, or the scale of the second half
};

// The pairs of four inputs of every row, given as bytes: the first and third, the second and fourth.
MAGNITUDE_INLINE RowWords even_codes(RowWords codes) { return _mm256_and_si256(codes, _mm256_set1_epi16(0x00ff)); }
MAGNITUDE_INLINE RowWords odd_codes(RowWords codes) { return _mm256_srli_epi16(codes, 8); }

// The same of four bytes that hold a nibble each, in its place or at the bottom.
MAGNITUDE_INLINE RowWords even_low(RowWords raw) { return _mm256_and_si256(raw, _mm256_set1_epi16(0x000f)); }
MAGNITUDE_INLINE RowWords odd_low_by_256(RowWords raw) { return _mm256_and_si256(raw, _mm256_set1_epi16(0x0f00)); }
MAGNITUDE_INLINE RowWords even_high_by_16(RowWords raw) { return _mm256_and_si256(raw, _mm256_set1_epi16(0x00f0)); }
MAGNITUDE_INLINE RowWords odd_high(RowWords raw) { return _mm256_srli_epi16(raw, 12); }
MAGNITUDE_INLINE RowWords odd_low(RowWords raw) { return even_low(_mm256_srli_epi16(raw, 8)); }
MAGNITUDE_INLINE RowWords even_high(RowWords raw) { return even_low(_mm256_srli_epi16(raw, 4)); }

// Keeps what a type unpacks, one half of the panels' rows: for many tokens.
template <class Type>
struct PanelSink {
  Panel* panels;
  int part;

  template <int b, int j>
  MAGNITUDE_INLINE void keep(RowWords even, RowWords odd) {
    const __m256i excess = _mm256_set1_epi16(Type::offset);
    panels[b].pairs[2 * j][part] = Type::offset ? _mm256_sub_epi16(even, excess) : even;
    panels[b].pairs[2 * j + 1][part] = Type::offset ? _mm256_sub_epi16(odd, excess) : odd;
  }
  template <int b, int j>
  MAGNITUDE_INLINE void codes(RowWords words) {
    keep<b, j>(even_codes(words), odd_codes(words));
  }
  template <int b, int j, int count>
  MAGNITUDE_INLINE void low_nibbles(const RowWords* raw) {
    keep<b, j>(even_low(raw[0]), odd_low(raw[0]));
    if constexpr (count > 1) low_nibbles<b, j + 1, count - 1>(raw + 1);
  }
  template <int b, int j, int count>
  MAGNITUDE_INLINE void high_nibbles(const RowWords* raw) {
    keep<b, j>(even_high(raw[0]), odd_high(raw[0]));
    if constexpr (count > 1) high_nibbles<b, j + 1, count - 1>(raw + 1);
  }
  template <int b>
  MAGNITUDE_INLINE void finish(RowFloats scale, RowFloats second) {
    panels[b].scale[part] = scale;
    if constexpr (Type::has_minimum || Type::has_halves) panels[b].second[part] = second;
  }
  MAGNITUDE_INLINE void advance(int blocks) { panels += blocks; }
};

template <class Type>
MAGNITUDE_INLINE PanelSink<Type> panel_sink(Panel* panels, int part) {
  return {panels, part};
}

// The steps of few tokens stand in the order of the source: gcc 12 moves plain additions until sums are spilled, or leaves
// those of floats for the end of the block, where each waits for the one before.
MAGNITUDE_INLINE void begin_products(RowWords& sum, RowWords codes, RowWords inputs) {
  __asm__ volatile("vpmaddwd %2, %1, %0" : "=x"(sum) : "x"(codes), "x"(inputs));
}
MAGNITUDE_INLINE void add_products(RowWords& sum, RowWords codes, RowWords inputs) {
  RowWords products;
  __asm__ volatile("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(codes), "x"(inputs));
}
MAGNITUDE_INLINE void stay_here(RowFloats& sum) { __asm__ volatile("" : "+x"(sum)); }

constexpr int log2_of(int power) { return power == 1 ? 0 : 1 + log2_of(power / 2); }

// Multiplies what a type unpacks by the activations of T tokens at once, nothing kept but sums: for few tokens.
template <class Type, int T>
struct DotSink {
  static constexpr int parts = Type::has_halves ? 2 : 1, part_codes = 8 / parts;
  const uint8_t* xq;
  size_t x_bytes;
  RowFloats sum[T];
  RowWords dots[parts][T];  // of the parts of the block so far

  MAGNITUDE_INLINE DotSink(const uint8_t* activations, size_t row_bytes) : xq(activations), x_bytes(row_bytes) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sum[t] = _mm256_setzero_ps();
  }
  MAGNITUDE_INLINE const ActivationBlock& block(int t, int b) const {
    return reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes)[b];
  }
  // Adds the products of a pair of inputs to sums of T tokens, or begins these.
  template <int b>
  MAGNITUDE_INLINE void multiply_pair(RowWords codes, int pair, bool begin, RowWords* sums) const {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const RowWords inputs = _mm256_set1_epi32(block(t, b).pairs[pair]);
      begin ? begin_products(sums[t], codes, inputs) : add_products(sums[t], codes, inputs);
    }
  }
  template <int b, int j>
  MAGNITUDE_INLINE void codes(RowWords words) {
    RowWords* sums = dots[j / part_codes];
    multiply_pair<b>(even_codes(words), 2 * j, j % part_codes == 0, sums);
    multiply_pair<b>(odd_codes(words), 2 * j + 1, false, sums);
  }
  // A sum of at most 16 products of 256 times a nibble and an activation is below 2^31.
  template <int b, int j, int count>
  MAGNITUDE_INLINE void low_nibbles(const RowWords* raw) {
    constexpr bool in_place = T <= kShiftlessTokens;
    RowWords by_256[T];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      multiply_pair<b>(even_low(raw[i]), 2 * (j + i), j + i == 0, dots[0]);
      if constexpr (in_place) {
        multiply_pair<b>(odd_low_by_256(raw[i]), 2 * (j + i) + 1, i == 0, by_256);
      } else {
        multiply_pair<b>(odd_low(raw[i]), 2 * (j + i) + 1, false, dots[0]);
      }
    }
    if constexpr (in_place) add_shifted<8>(by_256);
  }
  template <int b, int j, int count>
  MAGNITUDE_INLINE void high_nibbles(const RowWords* raw) {
    constexpr bool in_place = T <= kShiftlessTokens;
    RowWords by_16[T];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      multiply_pair<b>(odd_high(raw[i]), 2 * (j + i) + 1, j + i == 0, dots[0]);
      if constexpr (in_place) {
        multiply_pair<b>(even_high_by_16(raw[i]), 2 * (j + i), i == 0, by_16);
      } else {
        multiply_pair<b>(even_high(raw[i]), 2 * (j + i), false, dots[0]);
      }
    }
    if constexpr (in_place) add_shifted<4>(by_16);
  }
  template <int bits>
  MAGNITUDE_INLINE void add_shifted(const RowWords* sums) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) dots[0][t] = _mm256_add_epi32(dots[0][t], _mm256_srai_epi32(sums[t], bits));
  }
  // The sum of a part, without what the codes' offset adds to it.
  template <int part>
  MAGNITUDE_INLINE RowFloats dot(int t, const ActivationBlock& x) const {
    if constexpr (Type::offset == 0) return floats_from_words(dots[part][t]);
    RowWords excess = _mm256_set1_epi32(parts == 1 ? x.sum_by_32 : x.first_sum_by_32);
    if (part == 1) excess = _mm256_sub_epi32(_mm256_set1_epi32(x.sum_by_32), excess);
    if constexpr (Type::offset > 32) excess = shift_left<log2_of(Type::offset / 32)>(excess);
    if constexpr (Type::offset > 0 && Type::offset < 32) excess = shift_right_signed<log2_of(32 / Type::offset)>(excess);
    return floats_from_words(_mm256_sub_epi32(dots[part][t], excess));
  }
  template <int b>
  MAGNITUDE_INLINE void finish(RowFloats scale, RowFloats second) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = block(t, b);
      const RowFloats x_scale = _mm256_set1_ps(x.scale);
      sum[t] = fma(dot<0>(t, x), multiply(scale, x_scale), sum[t]);
      if constexpr (parts == 2) sum[t] = fma(dot<1>(t, x), multiply(second, x_scale), sum[t]);
      if constexpr (Type::has_minimum) sum[t] = fma(second, _mm256_set1_ps(x.scaled_sum), sum[t]);
      stay_here(sum[t]);
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
  __m256i sums = _mm256_setzero_si256(), first_sums = sums;
  for (int i = 0; i < 4; ++i) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse));
    const __m256i q = _mm256_and_si256(_mm256_cvtps_epi32(scaled), mask);
    sums = _mm256_add_epi32(sums, q);
    if (i == 1) first_sums = sums;
    // q0 q1 q2 q3 to the dwords (q0, q2) and (q1, q3).
    const __m256i low = _mm256_and_si256(_mm256_shuffle_epi32(q, 0x44), _mm256_set1_epi32(0xffff));
    const __m256i high = _mm256_slli_epi32(_mm256_shuffle_epi32(q, 0xee), 16);
    const __m256i pairs = _mm256_or_si256(low, high);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(block->pairs + 4 * i), _mm256_castsi256_si128(pairs));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(block->pairs + 4 * i + 2), _mm256_extracti128_si256(pairs, 1));
  }
  block->scale = finite ? amax / kActivationMax : __builtin_nanf("");
  const int sum = sum_words(sums);
  block->scaled_sum = static_cast<float>(sum) * block->scale;
  block->sum_by_32 = 32 * sum;
  block->first_sum_by_32 = 32 * sum_words(first_sums);
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

// The compiler may hold nothing of memory in registers across this: sums of floats would push sums of integers out.
MAGNITUDE_INLINE void keep_in_memory() { __asm__ volatile("" : : : "memory"); }

// sum + the products of 16-bit numbers, two in each dword.
MAGNITUDE_INLINE RowWords plus_products(RowWords sum, RowWords a, RowWords b) {
#ifdef __AVXVNNI__
  return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}

// Adds the products of pairs [first, first + count) of block b, and minima where there are any, to the sums of T tokens.
// Unrolled further, gcc 12 loads ahead until all sums are spilled: half of the speed.
template <int T, int first, int count, bool has_minimum>
MAGNITUDE_INLINE void accumulate_pairs(const Panel& panel, const RowFloats scale[2], const uint8_t* xq, size_t x_bytes,
                                       int b, Floats* sums) {
  const auto pair_of = [&](int t, int p) { return _mm256_set1_epi32(block_of(xq, x_bytes, t, b).pairs[p]); };
  RowWords low[T], high[T];   // of rows 0…7, 8…15
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    low[t] = _mm256_madd_epi16(panel.pairs[first][0], pair_of(t, first));
    high[t] = _mm256_madd_epi16(panel.pairs[first][1], pair_of(t, first));
  }
#pragma GCC unroll 5
  for (int p = first + 1; p < first + count; ++p) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      low[t] = plus_products(low[t], panel.pairs[p][0], pair_of(t, p));
      high[t] = plus_products(high[t], panel.pairs[p][1], pair_of(t, p));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const ActivationBlock& x = block_of(xq, x_bytes, t, b);
    const RowFloats x_scale = _mm256_set1_ps(x.scale);
    Floats sum = {fma(floats_from_words(low[t]), multiply(scale[0], x_scale), sums[t].a),
                  fma(floats_from_words(high[t]), multiply(scale[1], x_scale), sums[t].b)};
    if constexpr (has_minimum) {
      const RowFloats scaled_sum = _mm256_set1_ps(x.scaled_sum);
      sum = {fma(panel.second[0], scaled_sum, sum.a), fma(panel.second[1], scaled_sum, sum.b)};
    }
    sums[t] = sum;
  }
  keep_in_memory();
}

// Adds `count` blocks of 16 rows to the sums of T tokens, whose activations lie x_bytes apart. Not inlined: it needs all
// registers for itself.
template <class Type, int T>
__attribute__((noinline)) void accumulate(const Panel* panels, int count, const uint8_t* xq, size_t x_bytes,
                                          Floats* sums) {
  for (int b = 0; b < count; ++b) {
    const Panel& panel = panels[b];
    if constexpr (Type::has_halves) {
      accumulate_pairs<T, 0, 8, false>(panel, panel.scale, xq, x_bytes, b, sums);
      accumulate_pairs<T, 8, 8, false>(panel, panel.second, xq, x_bytes, b, sums);
    } else {
      accumulate_pairs<T, 0, 16, Type::has_minimum>(panel, panel.scale, xq, x_bytes, b, sums);
    }
  }
}

}  // namespace
}  // namespace magnitude
