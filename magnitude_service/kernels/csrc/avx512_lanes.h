// Sixteen lanes on AVX-512: the vocabulary in which the lanes_*.h files are written. avx2_lanes.h is its twin.
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
constexpr int kFloatRows = 4, kFloatTokens = 4;      // of float weights: 16 sums + 4 weights + 1 input in 32 registers
constexpr int kAttentionRows = 8, kAttentionVectors = 2;   // 16 sums + 2 keys (or values) + 1 broadcast
constexpr int kAttentionRowsFew = 6;                       // with twice the vectors of values: 24 sums + 4 + 1

using Floats = __m512;
using Words = __m512i;

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load_first(const float* from, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), from); }
inline void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
inline void store_first(float* to, Floats value, int count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), value);
}

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
// b where either is a NaN.
inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
// Lanes from `count` on become `other`.
inline Floats keep_first(Floats value, int count, Floats other) {
  return _mm512_mask_blend_ps(first_lanes(count), other, value);
}
// Whether every lane is below the bound (false for a NaN).
inline bool all_below(Floats value, float bound) {
  return _mm512_cmp_ps_mask(value, broadcast(bound), _CMP_LT_OQ) == 0xffff;
}

// 16 elements of another type as float32, exactly.
inline Floats load_f16(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Floats load_bf16(const uint8_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline void store_f16(uint8_t* to, Floats value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

inline float float_from_f16(uint16_t half) { return _cvtsh_ss(half); }
inline uint16_t f16_from_float(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

// The tree: l with l+8, then l+4, l+2, l+1.
inline float tree_sum(Floats v) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

inline float first_lane(Floats v) { return _mm512_cvtss_f32(v); }
inline Floats flip_sign(Floats v) { return _mm512_xor_ps(v, broadcast(-0.0f)); }

inline float largest(Floats v) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

// p * 2^whole for the exponential; whole is an integer, `shifted` the sum whose low bits hold it.
inline Floats scale_by_power(Floats p, Floats whole, Floats) { return _mm512_scalef_ps(p, whole); }

// The halves of 32 pairs (a0 b0 a1 b1 …), and back.
inline void load_pairs(const float* from, Floats* a, Floats* b) {
  const Words even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const Floats low = load(from), high = load(from + kLanes);
  *a = _mm512_permutex2var_ps(low, even, high);
  *b = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
}
inline void store_pairs(float* to, Floats a, Floats b) {
  const Words low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  store(to, _mm512_permutex2var_ps(a, low, b));
  store(to + kLanes, _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b));
}

// 16 bytes, each in a lane of its own.
inline Words load_bytes(const uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Words word(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
inline Words bits_and(Words a, Words b) { return _mm512_and_si512(a, b); }
inline Words bits_or(Words a, Words b) { return _mm512_or_si512(a, b); }
inline Words bits_xor(Words a, Words b) { return _mm512_xor_si512(a, b); }
template <int bits>
inline Words shift_left(Words a) {
  return _mm512_slli_epi32(a, bits);
}
template <int bits>
inline Words shift_right(Words a) {
  return _mm512_srli_epi32(a, bits);
}
template <int bits>
inline Words shift_right_signed(Words a) {
  return _mm512_srai_epi32(a, bits);
}
inline Floats floats_from_words(Words a) { return _mm512_cvtepi32_ps(a); }
// The low 16 bits of each lane as f16.
inline Floats floats_from_f16_words(Words a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }

// Bit 4 of byte i of each lane: bit 4*part + i of the lane. The other bits are 0.
template <int part>
inline Words spread_bits(Words a) {
  constexpr int byte = part / 2, first = part % 2 * 4;
  const Words pattern = _mm512_broadcast_i32x4(
      _mm_setr_epi8(byte, byte, byte, byte, byte + 4, byte + 4, byte + 4, byte + 4, byte + 8, byte + 8, byte + 8,
                    byte + 8, byte + 12, byte + 12, byte + 12, byte + 12));
  const Words bit = word(0x08040201u << first);
  return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(_mm512_shuffle_epi8(a, pattern), bit), word(0x10101010));
}

// 16 rows, `stride` bytes apart: word j of the 16 bytes at `from` in each of them.
inline void load_piece(const uint8_t* from, size_t stride, Words piece[4]) {
  Words quarter[4];   // rows i, 4+i, 8+i, 12+i
  for (int i = 0; i < 4; ++i) {
    const uint8_t* row = from + i * stride;
    const auto at = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + r * stride)); };
    quarter[i] = _mm512_castsi128_si512(at(0));
    quarter[i] = _mm512_inserti32x4(quarter[i], at(4), 1);
    quarter[i] = _mm512_inserti32x4(quarter[i], at(8), 2);
    quarter[i] = _mm512_inserti32x4(quarter[i], at(12), 3);
  }
  const Words a = _mm512_unpacklo_epi32(quarter[0], quarter[1]), b = _mm512_unpacklo_epi32(quarter[2], quarter[3]);
  const Words c = _mm512_unpackhi_epi32(quarter[0], quarter[1]), d = _mm512_unpackhi_epi32(quarter[2], quarter[3]);
  piece[0] = _mm512_unpacklo_epi64(a, b);
  piece[1] = _mm512_unpackhi_epi64(a, b);
  piece[2] = _mm512_unpacklo_epi64(c, d);
  piece[3] = _mm512_unpackhi_epi64(c, d);
}

// Into the second-level cache. gcc 12 drops _mm_prefetch from loops that do nothing else; it keeps this.
MAGNITUDE_INLINE void prefetch(const uint8_t* address) { __asm__ volatile("prefetcht1 %0" : : "m"(*address)); }

}  // namespace
}  // namespace magnitude
