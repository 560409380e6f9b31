// Sixteen lanes on AVX2, as two registers of eight: the vocabulary of the lanes_*.h files. avx512_lanes.h is its twin.
//
// Floats: 16 float32. Words: 16 dwords, usually one of each of 16 weight rows.
#pragma once

#include <immintrin.h>

#include "exponential.h"
#include "ops.h"

// Loops over vectors are built of many small functions: none may remain a call, which would spill every register.
#define MAGNITUDE_INLINE inline __attribute__((always_inline))

namespace magnitude {
namespace {

constexpr int kLanes = 16;
constexpr int kFloatRows = 2, kFloatTokens = 3;   // of float weights: 12 sums + 2 weights + 1 input in 16 registers
constexpr int kAttentionRows = 6, kAttentionVectors = 1;   // 12 sums + 2 keys (or values) + 1 broadcast
constexpr int kAttentionRowsFew = 2;                       // with twice the vectors of values: 8 sums + 4 + 1

struct Floats {
  __m256 a, b;   // lanes 0…7, 8…15
};
struct Words {
  __m256i a, b;
};

// All bits set in lanes below `count`.
inline Words first_lanes(int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane)};
}

inline Floats broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Floats load_first(const float* from, int count) {
  const Words mask = first_lanes(count);
  return {_mm256_maskload_ps(from, mask.a), _mm256_maskload_ps(from + 8, mask.b)};
}
inline void store(float* to, Floats value) {
  _mm256_storeu_ps(to, value.a);
  _mm256_storeu_ps(to + 8, value.b);
}
inline void store_first(float* to, Floats value, int count) {
  const Words mask = first_lanes(count);
  _mm256_maskstore_ps(to, mask.a, value.a);
  _mm256_maskstore_ps(to + 8, mask.b, value.b);
}

inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats subtract(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats multiply(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats divide(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// y where either is a NaN.
inline Floats maximum(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats minimum(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
// Lanes from `count` on become `other`.
inline Floats keep_first(Floats value, int count, Floats other) {
  const Words mask = first_lanes(count);
  return {_mm256_blendv_ps(other.a, value.a, _mm256_castsi256_ps(mask.a)),
          _mm256_blendv_ps(other.b, value.b, _mm256_castsi256_ps(mask.b))};
}
// Whether every lane is below the bound (false for a NaN).
inline bool all_below(Floats value, float bound) {
  const __m256 limit = _mm256_set1_ps(bound);
  const __m256 a = _mm256_cmp_ps(value.a, limit, _CMP_LT_OQ), b = _mm256_cmp_ps(value.b, limit, _CMP_LT_OQ);
  return _mm256_movemask_ps(_mm256_and_ps(a, b)) == 0xff;
}

// 8 elements as float32, exactly, and 16.
inline __m256 load_part(const float* from) { return _mm256_loadu_ps(from); }
inline __m256 load_f16_part(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load_bf16_part(const uint8_t* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Floats load_f16(const uint8_t* from) { return {load_f16_part(from), load_f16_part(from + 16)}; }
inline Floats load_bf16(const uint8_t* from) { return {load_bf16_part(from), load_bf16_part(from + 16)}; }
inline void store_f16(uint8_t* to, Floats value) {
  __m128i* halves = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(value.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(value.b, _MM_FROUND_TO_NEAREST_INT));
}

inline float float_from_f16(uint16_t half) { return _cvtsh_ss(half); }
inline uint16_t f16_from_float(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

// The tree: l with l+8, then l+4, l+2, l+1.
inline float tree_sum(Floats v) {
  const __m256 by8 = _mm256_add_ps(v.a, v.b);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

inline float largest(Floats v) {
  const __m256 by8 = _mm256_max_ps(v.a, v.b);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

inline float first_lane(Floats v) { return _mm256_cvtss_f32(v.a); }

inline Floats flip_sign(Floats v) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(v.a, sign), _mm256_xor_ps(v.b, sign)};
}

// p * 2^n for the exponential, in two steps; the low bits of `shifted` hold n.
inline __m256 scale_by_power(__m256 p, __m256 shifted) {
  const __m256i round = _mm256_castps_si256(_mm256_set1_ps(kExpRound)), bias = _mm256_set1_epi32(127);
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), round), half = _mm256_srai_epi32(n, 1);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
inline Floats scale_by_power(Floats p, Floats, Floats shifted) {
  return {scale_by_power(p.a, shifted.a), scale_by_power(p.b, shifted.b)};
}

// The halves of 8 pairs in each register (a0 b0 a1 b1 …), and back.
inline __m256 ordered(__m256 v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); }
inline void load_pairs(const float* from, Floats* a, Floats* b) {
  const Floats low = load(from), high = load(from + kLanes);
  *a = {ordered(_mm256_shuffle_ps(low.a, low.b, 0x88)), ordered(_mm256_shuffle_ps(high.a, high.b, 0x88))};
  *b = {ordered(_mm256_shuffle_ps(low.a, low.b, 0xdd)), ordered(_mm256_shuffle_ps(high.a, high.b, 0xdd))};
}
inline void store_eight_pairs(float* to, __m256 a, __m256 b) {
  const __m256 even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b);
  _mm256_storeu_ps(to, _mm256_permute2f128_ps(even, odd, 0x20));
  _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(even, odd, 0x31));
}
inline void store_pairs(float* to, Floats a, Floats b) {
  store_eight_pairs(to, a.a, b.a);
  store_eight_pairs(to + kLanes, a.b, b.b);
}

// 16 bytes, each in a lane of its own.
inline Words load_bytes(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline Words word(uint32_t value) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(value));
  return {all, all};
}
inline Words bits_and(Words x, Words y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline Floats floats_from_words(Words x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

// Eight rows, a lane each: the vocabulary of lanes_unpack.h. Sixteen would not leave registers for sums.
#define MAGNITUDE_UNPACK_ROWS
using RowWords = __m256i;
using RowFloats = __m256;
constexpr int kUnpackRows = 8;

inline RowWords row_word(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
inline Floats joined(const RowFloats parts[2]) { return {parts[0], parts[1]}; }
// In a register from here on: gcc 12 would load it again for every use.
MAGNITUDE_INLINE void hold(RowFloats& value) { __asm__("" : "+x"(value)); }
inline RowFloats fma(RowFloats x, RowFloats y, RowFloats z) { return _mm256_fmadd_ps(x, y, z); }
inline RowFloats multiply(RowFloats x, RowFloats y) { return _mm256_mul_ps(x, y); }
inline RowFloats flip_sign(RowFloats v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }
inline RowWords bits_and(RowWords x, RowWords y) { return _mm256_and_si256(x, y); }
inline RowWords bits_or(RowWords x, RowWords y) { return _mm256_or_si256(x, y); }
inline RowWords bits_xor(RowWords x, RowWords y) { return _mm256_xor_si256(x, y); }
template <int bits>
inline RowWords shift_left(RowWords x) {
  return _mm256_slli_epi32(x, bits);
}
template <int bits>
inline RowWords shift_right(RowWords x) {
  return _mm256_srli_epi32(x, bits);
}
template <int bits>
inline RowWords shift_right_signed(RowWords x) {
  return _mm256_srai_epi32(x, bits);
}
inline RowFloats floats_from_words(RowWords x) { return _mm256_cvtepi32_ps(x); }
// The low 16 bits of each lane as f16.
inline RowFloats floats_from_f16_words(RowWords x) {
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  return _mm256_cvtph_ps(halves);
}

// Bit 4 of byte i of each lane: bit 4*part + i of the lane. The other bits are 0.
template <int part>
inline RowWords spread_bits(RowWords x) {
  constexpr int byte = part / 2, first = part % 2 * 4;
  const __m256i pattern = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(byte, byte, byte, byte, byte + 4, byte + 4, byte + 4, byte + 4, byte + 8, byte + 8, byte + 8,
                    byte + 8, byte + 12, byte + 12, byte + 12, byte + 12));
  const __m256i bit = _mm256_set1_epi32(static_cast<int>(0x08040201u << first));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(x, pattern), bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(0x10));
}

// 16 bytes in both halves. Two of these and a blend take less than half the time of an insertion from memory (Zen 3).
inline __m256i load_twice(const uint8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Word j of the 16 bytes at `from` in each of 8 rows, `stride` bytes apart.
inline void load_piece(const uint8_t* from, size_t stride, RowWords piece[4]) {
  __m256i half[4];   // rows i, 4+i
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm256_blend_epi32(load_twice(from + i * stride), load_twice(from + (i + 4) * stride), 0xf0);
  }
  const __m256i a = _mm256_unpacklo_epi32(half[0], half[1]), b = _mm256_unpacklo_epi32(half[2], half[3]);
  const __m256i c = _mm256_unpackhi_epi32(half[0], half[1]), d = _mm256_unpackhi_epi32(half[2], half[3]);
  piece[0] = _mm256_unpacklo_epi64(a, b);
  piece[1] = _mm256_unpackhi_epi64(a, b);
  piece[2] = _mm256_unpacklo_epi64(c, d);
  piece[3] = _mm256_unpackhi_epi64(c, d);
}

// The f16 at `from` of each of 8 rows, `stride` bytes apart. A row is loaded from as many bytes before as its lane lies
// behind the first, so that only blends remain: half of the instructions of a transposition. What lies before belongs to
// the row before it.
template <int row = 0>
MAGNITUDE_INLINE __m128i load_half(const uint8_t* from, size_t stride) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * stride - 2 * row));
  if constexpr (row == 7) return halves;
  if constexpr (row < 7) return _mm_blend_epi16(load_half<row + 1>(from, stride), halves, 1 << row);
}
MAGNITUDE_INLINE RowFloats load_f16_of_rows(const uint8_t* from, size_t stride) {
  return _mm256_cvtph_ps(load_half(from, stride));
}

// Into the second-level cache. gcc 12 drops _mm_prefetch from loops that do nothing else; it keeps this.
MAGNITUDE_INLINE void prefetch(const uint8_t* address) { __asm__ volatile("prefetcht1 %0" : : "m"(*address)); }

}  // namespace
}  // namespace magnitude
