// Integer products on NEON with sdot: the layout of activations and of unpacked weights, and the loop over them.
//
// sdot adds four products of signed bytes to each dword; one of its forms takes the same four bytes of a register for
// all lanes, so that activations need no broadcast. Codes lose their offset, after which every type fits a signed byte.
#pragma once

#include "blocks.h"
#include "neon_lanes.h"

namespace magnitude {
namespace {

constexpr int kDirectTokens = 2;   // tokens up to which codes are multiplied as they are unpacked
constexpr int kTileTokens = 2;     // tokens that share a load of weights: 16 integer sums, 4 + 8 codes and inputs of 32

// 32 inputs: q = 256*high + low in two planes of signed bytes.
struct ActivationBlock {
  int8_t high[kBlock];
  int8_t low[kBlock];
  float scale;
  float scaled_sum;         // float(sum q) * scale
};
static_assert(sizeof(ActivationBlock) == 72, "the blocks of a row are adjacent");

// 16 rows of 32 weights: codes[j] holds inputs 4j…4j+3 of each row as signed bytes, offset removed.
struct alignas(64) Panel {
  Words codes[8];
  Floats scale;
  Floats second;            // minimum as it is added, or the scale of the second half
};

// Integer sums of 16 rows, of each plane.
struct Planes {
  int32x4_t high[kVectors], low[kVectors];
};

MAGNITUDE_INLINE Planes no_products() {
  const int32x4_t zero = vdupq_n_s32(0);
  return {{zero, zero, zero, zero}, {zero, zero, zero, zero}};
}

template <int offset>
MAGNITUDE_INLINE Words signed_codes(Words codes) {
  if constexpr (offset == 0) return codes;
  if constexpr (offset == 128) return bits_xor(codes, word(0x80808080));
  return each(codes, [](uint32x4_t x) {
    return vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(x), vdupq_n_u8(offset)));
  });
}

// Adds the products of inputs 4j…4j+3.
template <int j>
MAGNITUDE_INLINE void add_products(Words codes, const ActivationBlock& x, Planes* sums) {
  const int8x16_t high = vld1q_s8(x.high + j / 4 * 16), low = vld1q_s8(x.low + j / 4 * 16);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const int8x16_t rows = vreinterpretq_s8_u32(codes.part[i]);
    sums->high[i] = vdotq_laneq_s32(sums->high[i], rows, high, j % 4);
    sums->low[i] = vdotq_laneq_s32(sums->low[i], rows, low, j % 4);
  }
}

MAGNITUDE_INLINE float32x4_t combined(int32x4_t high, int32x4_t low) {
  return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
}
MAGNITUDE_INLINE Floats combined(const Planes& sums) {
  return {{combined(sums.high[0], sums.low[0]), combined(sums.high[1], sums.low[1]),
           combined(sums.high[2], sums.low[2]), combined(sums.high[3], sums.low[3])}};
}

// Keeps what a type unpacks: for many tokens.
template <class Type>
struct PanelSink {
  Panel* panels;

  template <int b, int j>
  MAGNITUDE_INLINE void codes(Words words) {
    panels[b].codes[j] = signed_codes<Type::offset>(words);
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
  Planes dots[T];           // of the part that is being handed
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
    const Words codes = signed_codes<Type::offset>(words);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      if constexpr (j % part_codes == 0) dots[t] = no_products();
      add_products<j>(codes, block(t, b), &dots[t]);
      if constexpr (j % part_codes == part_codes - 1) dot[j / part_codes][t] = combined(dots[t]);
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

inline void quantize_block(const float* x, ActivationBlock* block) {
  uint32x4_t largest_bits = vdupq_n_u32(0);   // magnitudes compare as integers, so that a NaN cannot hide
  for (int i = 0; i < kBlock; i += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i));
    largest_bits = vmaxq_u32(largest_bits, vandq_u32(bits, vdupq_n_u32(0x7fffffff)));
  }
  const uint32_t largest = vmaxvq_u32(largest_bits);
  const float amax = vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(largest)), 0);
  const float inverse = kActivationMax / amax;
  const bool finite = largest < 0x7f800000, visible = finite && inverse < __builtin_inff();
  const int32x4_t mask = vdupq_n_s32(visible ? -1 : 0);
  int32x4_t sums = vdupq_n_s32(0);
  for (int i = 0; i < kBlock; i += 8) {
    const int32x4_t a = vandq_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse)), mask);
    const int32x4_t b = vandq_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse)), mask);
    sums = vaddq_s32(sums, vaddq_s32(a, b));
    // low is the signed low byte; high takes up its borrow.
    const int16x8_t q = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
    vst1_s8(block->low + i, vmovn_s16(q));
    vst1_s8(block->high + i, vrshrn_n_s16(q, 8));
  }
  block->scale = finite ? amax / kActivationMax : __builtin_nanf("");
  block->scaled_sum = static_cast<float>(vaddvq_s32(sums)) * block->scale;
}

void quantize(const float* x, size_t x_stride, int M, int K, uint8_t* xq) {
  const size_t row_bytes = quantized_row_bytes(K);
  for (int m = 0; m < M; ++m) {
    ActivationBlock* blocks = reinterpret_cast<ActivationBlock*>(xq + m * row_bytes);
    for (int b = 0; b < K / kBlock; ++b) quantize_block(x + m * x_stride + b * kBlock, blocks + b);
  }
}

// sum (u - o) * q over codes [j, end) for 16 rows.
template <int j, int end>
MAGNITUDE_INLINE void add_all_products(const Words* codes, const ActivationBlock& x, Planes* sums) {
  if constexpr (j < end) {
    add_products<j>(codes[j], x, sums);
    add_all_products<j + 1, end>(codes, x, sums);
  }
}
template <int first, int count>
MAGNITUDE_INLINE Floats block_dot(const Words* codes, const ActivationBlock& x) {
  Planes sums = no_products();
  add_all_products<first, first + count>(codes, x, &sums);
  return combined(sums);
}

// Adds `count` blocks of 16 rows to the sums of T tokens, whose activations lie x_bytes apart.
template <class Type, int T>
inline void accumulate(const Panel* panels, int count, const uint8_t* xq, size_t x_bytes, Floats* sums) {
  for (int b = 0; b < count; ++b) {
    const Panel& panel = panels[b];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const ActivationBlock& x = reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes)[b];
      const Floats x_scale = broadcast(x.scale);
      if constexpr (Type::has_halves) {
        const Floats first_dot = block_dot<0, 4>(panel.codes, x), second_dot = block_dot<4, 4>(panel.codes, x);
        sums[t] = add(sums[t], multiply(first_dot, multiply(panel.scale, x_scale)));
        sums[t] = add(sums[t], multiply(second_dot, multiply(panel.second, x_scale)));
      } else {
        sums[t] = add(sums[t], multiply(block_dot<0, 8>(panel.codes, x), multiply(panel.scale, x_scale)));
      }
      if constexpr (Type::has_minimum) sums[t] = add(sums[t], multiply(panel.second, broadcast(x.scaled_sum)));
    }
  }
}

}  // namespace
}  // namespace magnitude
