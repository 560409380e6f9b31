// Sixteen lanes on NEON, as four registers of four: the vocabulary of the lanes_*.h files. avx512_lanes.h is its twin.
//
// Floats: 16 float32. Words: 16 dwords, usually one of each of 16 weight rows.
#pragma once

#include <arm_neon.h>

#include "exponential.h"
#include "ops.h"

// Loops over vectors are built of many small functions: none may remain a call, which would spill every register.
#define MAGNITUDE_INLINE inline __attribute__((always_inline))

namespace magnitude {
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 4;                       // registers of 16 lanes
constexpr int kFloatRows = 2, kFloatTokens = 2;   // of float weights: 16 sums + 8 weights + 4 inputs in 32 registers
constexpr int kAttentionRows = 6, kAttentionVectors = 1;   // 24 sums + 4 keys (or values) + 1 broadcast
constexpr int kAttentionRowsFew = 2;              // with twice the vectors of values: 16 sums + 8 + 1

struct Floats {
  float32x4_t part[kVectors];   // lanes 0…3, 4…7, 8…11, 12…15
};
struct Words {
  uint32x4_t part[kVectors];
};

// f(part) of every register.
template <class Function>
MAGNITUDE_INLINE Floats each(Floats x, Function&& f) {
  return {{f(x.part[0]), f(x.part[1]), f(x.part[2]), f(x.part[3])}};
}
template <class Function>
MAGNITUDE_INLINE Floats each(Floats x, Floats y, Function&& f) {
  return {{f(x.part[0], y.part[0]), f(x.part[1], y.part[1]), f(x.part[2], y.part[2]), f(x.part[3], y.part[3])}};
}
template <class Function>
MAGNITUDE_INLINE Words each(Words x, Function&& f) {
  return {{f(x.part[0]), f(x.part[1]), f(x.part[2]), f(x.part[3])}};
}
template <class Function>
MAGNITUDE_INLINE Words each(Words x, Words y, Function&& f) {
  return {{f(x.part[0], y.part[0]), f(x.part[1], y.part[1]), f(x.part[2], y.part[2]), f(x.part[3], y.part[3])}};
}

MAGNITUDE_INLINE Floats broadcast(float value) {
  const float32x4_t all = vdupq_n_f32(value);
  return {{all, all, all, all}};
}
MAGNITUDE_INLINE Floats load(const float* from) {
  return {{vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)}};
}
MAGNITUDE_INLINE void store(float* to, Floats value) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) vst1q_f32(to + 4 * i, value.part[i]);
}
// Lanes from `count` on are 0, and what lies behind the others in memory is left alone: by way of a copy, as NEON has
// no masks for memory.
inline Floats load_first(const float* from, int count) {
  float copy[kLanes] = {};
  for (int i = 0; i < count; ++i) copy[i] = from[i];
  return load(copy);
}
inline void store_first(float* to, Floats value, int count) {
  float copy[kLanes];
  store(copy, value);
  for (int i = 0; i < count; ++i) to[i] = copy[i];
}

MAGNITUDE_INLINE Floats add(Floats x, Floats y) {
  return each(x, y, [](float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); });
}
MAGNITUDE_INLINE Floats subtract(Floats x, Floats y) {
  return each(x, y, [](float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); });
}
MAGNITUDE_INLINE Floats multiply(Floats x, Floats y) {
  return each(x, y, [](float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); });
}
MAGNITUDE_INLINE Floats divide(Floats x, Floats y) {
  return each(x, y, [](float32x4_t a, float32x4_t b) { return vdivq_f32(a, b); });
}
MAGNITUDE_INLINE Floats fma(Floats x, Floats y, Floats z) {
  return {{vfmaq_f32(z.part[0], x.part[0], y.part[0]), vfmaq_f32(z.part[1], x.part[1], y.part[1]),
           vfmaq_f32(z.part[2], x.part[2], y.part[2]), vfmaq_f32(z.part[3], x.part[3], y.part[3])}};
}
// y where either is a NaN: vmaxq_f32 would give the NaN.
inline float32x4_t maximum(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline float32x4_t minimum(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
MAGNITUDE_INLINE Floats maximum(Floats x, Floats y) {
  return each(x, y, [](float32x4_t a, float32x4_t b) { return maximum(a, b); });
}
MAGNITUDE_INLINE Floats minimum(Floats x, Floats y) {
  return each(x, y, [](float32x4_t a, float32x4_t b) { return minimum(a, b); });
}

// All bits set in lanes below `count`, of the register whose first lane is `first`.
inline uint32x4_t first_lanes(int count, int first) {
  const int32_t lanes[4] = {first, first + 1, first + 2, first + 3};
  return vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(count));
}
// Lanes from `count` on become `other`.
MAGNITUDE_INLINE Floats keep_first(Floats value, int count, Floats other) {
  Floats kept;
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    kept.part[i] = vbslq_f32(first_lanes(count, 4 * i), value.part[i], other.part[i]);
  }
  return kept;
}
// Whether every lane is below the bound (false for a NaN).
inline bool all_below(Floats value, float bound) {
  uint32x4_t below = vdupq_n_u32(0xffffffff);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) below = vandq_u32(below, vcltq_f32(value.part[i], vdupq_n_f32(bound)));
  return vminvq_u32(below) != 0;
}

// 16 elements of another type as float32, exactly.
inline float32x4_t floats_from_f16(uint16x4_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(halves)); }
inline float32x4_t floats_from_bf16(uint16x4_t halves) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(halves), 16));
}
MAGNITUDE_INLINE Floats load_f16(const uint8_t* from) {
  const uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(from)), b = vreinterpretq_u16_u8(vld1q_u8(from + 16));
  return {{floats_from_f16(vget_low_u16(a)), floats_from_f16(vget_high_u16(a)), floats_from_f16(vget_low_u16(b)),
           floats_from_f16(vget_high_u16(b))}};
}
MAGNITUDE_INLINE Floats load_bf16(const uint8_t* from) {
  const uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(from)), b = vreinterpretq_u16_u8(vld1q_u8(from + 16));
  return {{floats_from_bf16(vget_low_u16(a)), floats_from_bf16(vget_high_u16(a)), floats_from_bf16(vget_low_u16(b)),
           floats_from_bf16(vget_high_u16(b))}};
}
inline float float_from_f16(uint16_t half) { return vgetq_lane_f32(floats_from_f16(vdup_n_u16(half)), 0); }
inline uint16_t f16_from_float(float value) {
  return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(value))), 0);
}

// The tree: l with l+8, then l+4, l+2, l+1.
inline float tree_sum(Floats v) {
  const float32x4_t by8_low = vaddq_f32(v.part[0], v.part[2]), by8_high = vaddq_f32(v.part[1], v.part[3]);
  const float32x4_t by4 = vaddq_f32(by8_low, by8_high);
  const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
  return vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1);
}

// Of lanes that hold no NaN.
inline float largest(Floats v) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.part[0], v.part[2]), vmaxq_f32(v.part[1], v.part[3])));
}

inline float first_lane(Floats v) { return vgetq_lane_f32(v.part[0], 0); }
MAGNITUDE_INLINE Floats flip_sign(Floats v) {
  return each(v, [](float32x4_t a) { return vnegq_f32(a); });
}

// p * 2^n for the exponential, in two steps; the low bits of `shifted` hold n.
inline float32x4_t scale_by_power(float32x4_t p, float32x4_t shifted) {
  const int32x4_t round = vreinterpretq_s32_f32(vdupq_n_f32(kExpRound)), bias = vdupq_n_s32(127);
  const int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(shifted), round), half = vshrq_n_s32(n, 1);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(n, half), bias), 23);
  return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}
MAGNITUDE_INLINE Floats scale_by_power(Floats p, Floats, Floats shifted) {
  return each(p, shifted, [](float32x4_t a, float32x4_t b) { return scale_by_power(a, b); });
}

// The halves of 32 numbers in pairs (a0 b0 a1 b1 …), and back.
MAGNITUDE_INLINE void load_pairs(const float* from, Floats* a, Floats* b) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const float32x4x2_t pairs = vld2q_f32(from + 8 * i);
    a->part[i] = pairs.val[0];
    b->part[i] = pairs.val[1];
  }
}
MAGNITUDE_INLINE void store_pairs(float* to, Floats a, Floats b) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) vst2q_f32(to + 8 * i, float32x4x2_t{{a.part[i], b.part[i]}});
}

// 16 bytes, each in a lane of its own.
MAGNITUDE_INLINE Words load_bytes(const uint8_t* from) {
  const uint8x16_t bytes = vld1q_u8(from);
  const uint16x8_t a = vmovl_u8(vget_low_u8(bytes)), b = vmovl_u8(vget_high_u8(bytes));
  return {{vmovl_u16(vget_low_u16(a)), vmovl_u16(vget_high_u16(a)), vmovl_u16(vget_low_u16(b)),
           vmovl_u16(vget_high_u16(b))}};
}
MAGNITUDE_INLINE Words word(uint32_t value) {
  const uint32x4_t all = vdupq_n_u32(value);
  return {{all, all, all, all}};
}
MAGNITUDE_INLINE Words bits_and(Words x, Words y) {
  return each(x, y, [](uint32x4_t a, uint32x4_t b) { return vandq_u32(a, b); });
}
MAGNITUDE_INLINE Words bits_or(Words x, Words y) {
  return each(x, y, [](uint32x4_t a, uint32x4_t b) { return vorrq_u32(a, b); });
}
MAGNITUDE_INLINE Words bits_xor(Words x, Words y) {
  return each(x, y, [](uint32x4_t a, uint32x4_t b) { return veorq_u32(a, b); });
}
template <int bits>
MAGNITUDE_INLINE Words shift_left(Words x) {
  return each(x, [](uint32x4_t a) { return vshlq_n_u32(a, bits); });
}
template <int bits>
MAGNITUDE_INLINE Words shift_right(Words x) {
  return each(x, [](uint32x4_t a) { return vshrq_n_u32(a, bits); });
}
template <int bits>
MAGNITUDE_INLINE Words shift_right_signed(Words x) {
  return each(x, [](uint32x4_t a) { return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(a), bits)); });
}
// Lanes are signed.
inline float32x4_t floats_from_words(uint32x4_t x) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }
MAGNITUDE_INLINE Floats floats_from_words(Words x) {
  return {{floats_from_words(x.part[0]), floats_from_words(x.part[1]), floats_from_words(x.part[2]),
           floats_from_words(x.part[3])}};
}
// The low 16 bits of each lane as f16.
MAGNITUDE_INLINE Floats floats_from_f16_words(Words x) {
  return {{floats_from_f16(vmovn_u32(x.part[0])), floats_from_f16(vmovn_u32(x.part[1])),
           floats_from_f16(vmovn_u32(x.part[2])), floats_from_f16(vmovn_u32(x.part[3]))}};
}

// Bit 4 of byte i of each lane: bit 4*part + i of the lane. The other bits are 0.
template <int part>
MAGNITUDE_INLINE Words spread_bits(Words x) {
  constexpr uint8_t byte = part / 2, first = part % 2 * 4;
  const uint32_t bytes = byte * 0x01010101u;
  const uint32_t pattern[4] = {bytes, bytes + 0x04040404u, bytes + 0x08080808u, bytes + 0x0c0c0c0cu};
  const uint8x16_t from = vreinterpretq_u8_u32(vld1q_u32(pattern));
  const uint8x16_t bit = vreinterpretq_u8_u32(vdupq_n_u32(0x08040201u << first));
  return each(x, [&](uint32x4_t a) {
    const uint8x16_t set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u32(a), from), bit);
    return vreinterpretq_u32_u8(vandq_u8(set, vdupq_n_u8(0x10)));
  });
}

// 4 rows, `stride` bytes apart: word j of the 16 bytes at `from` in each of them.
MAGNITUDE_INLINE void load_four(const uint8_t* from, size_t stride, uint32x4_t piece[4]) {
  const uint32x4_t row0 = vreinterpretq_u32_u8(vld1q_u8(from));
  const uint32x4_t row1 = vreinterpretq_u32_u8(vld1q_u8(from + stride));
  const uint32x4_t row2 = vreinterpretq_u32_u8(vld1q_u8(from + 2 * stride));
  const uint32x4_t row3 = vreinterpretq_u32_u8(vld1q_u8(from + 3 * stride));
  const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(row0, row1)), b = vreinterpretq_u64_u32(vtrn1q_u32(row2, row3));
  const uint64x2_t c = vreinterpretq_u64_u32(vtrn2q_u32(row0, row1)), d = vreinterpretq_u64_u32(vtrn2q_u32(row2, row3));
  piece[0] = vreinterpretq_u32_u64(vtrn1q_u64(a, b));
  piece[1] = vreinterpretq_u32_u64(vtrn1q_u64(c, d));
  piece[2] = vreinterpretq_u32_u64(vtrn2q_u64(a, b));
  piece[3] = vreinterpretq_u32_u64(vtrn2q_u64(c, d));
}
MAGNITUDE_INLINE void load_piece(const uint8_t* from, size_t stride, Words piece[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    uint32x4_t words[4];
    load_four(from + static_cast<size_t>(4 * i) * stride, stride, words);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) piece[j].part[i] = words[j];
  }
}

// Into the second-level cache.
MAGNITUDE_INLINE void prefetch(const uint8_t* address) {
  __asm__ volatile("prfm pldl2keep, [%0]" : : "r"(address));
}

}  // namespace
}  // namespace magnitude
