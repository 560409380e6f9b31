// Integer products on NEON: the layout of activations and of unpacked weights, and the loop over them.
//
// sdot adds four products of signed bytes to each dword; one of its forms takes the same four bytes of a register for
// all lanes, so that activations need no broadcast. Codes lose their offset, after which every type fits a signed byte.
//
// With FEAT_I8MM the panels of many tokens are multiplied by smmla, eight products for each dword: its two rows of eight
// bytes are the planes of an activation on one side and two rows of weights on the other.
#pragma once

#include "blocks.h"
#include "neon_lanes.h"

namespace magnitude {
namespace {

constexpr int kDirectTokens = 2;   // tokens up to which codes are multiplied as they are unpacked
constexpr int kTileTokens = 2;     // tokens that share a load of weights: 16 integer sums, 4 + 8 codes and inputs of 32

// 32 inputs: q = 256*high + low in two planes of signed bytes. planes[g] holds inputs 8g…8g+7: high, then low.
struct ActivationBlock {
  int8_t planes[kBlock / 8][16];
  float scale;
  float scaled_sum;         // float(sum q) * scale
};
static_assert(sizeof(ActivationBlock) == 72, "the blocks of a row are adjacent");

// 16 rows of 32 weights as signed bytes, offset removed: codes[j] holds inputs 4j…4j+3 of each row, or where smmla takes
// them codes[2g] inputs 8g…8g+7 of rows 0, 1; 4, 5; 8, 9; 12, 13 and codes[2g+1] those of the other rows.
struct alignas(64) Panel {
  Words codes[8];
  Floats scale;
  Floats second;            // minimum as it is added, or the scale of the second half
};

template <int offset>
MAGNITUDE_INLINE Words signed_codes(Words codes) {
  if constexpr (offset == 0) return codes;
  if constexpr (offset == 128) return bits_xor(codes, word(0x80808080));
  return each(codes, [](uint32x4_t x) {
    return vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(x), vdupq_n_u8(offset)));
  });
}

MAGNITUDE_INLINE float32x4_t combined(int32x4_t high, int32x4_t low) {
  return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
}

// Integer sums of 16 rows, of each plane.
struct Planes {
  int32x4_t high[kVectors] = {}, low[kVectors] = {};

  // Adds the products of inputs 4j…4j+3: of the first or the second four of planes[j / 2].
  template <int second>
  MAGNITUDE_INLINE void add_products(const Words& codes, int8x16_t inputs) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const int8x16_t rows = vreinterpretq_s8_u32(codes.part[i]);
      high[i] = vdotq_laneq_s32(high[i], rows, inputs, second);
      low[i] = vdotq_laneq_s32(low[i], rows, inputs, 2 + second);
    }
  }
  MAGNITUDE_INLINE Floats values() const {
    return {{combined(high[0], low[0]), combined(high[1], low[1]), combined(high[2], low[2]), combined(high[3], low[3])}};
  }
};

#ifdef __ARM_FEATURE_MATMUL_INT8

// Puts rows side by side in a panel: from two words of inputs of four rows to two rows of eight inputs, twice.
MAGNITUDE_INLINE void arrange(Words codes[2]) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const uint32x4_t first = codes[0].part[i], second = codes[1].part[i];
    codes[0].part[i] = vzip1q_u32(first, second);
    codes[1].part[i] = vzip2q_u32(first, second);
  }
}

// Integer sums of 16 rows as smmla adds them: the high plane's of two rows, then the low one's.
struct PanelSums {
  int32x4_t pairs[2][kVectors] = {};   // of rows 4i, 4i+1, and of rows 4i+2, 4i+3

  // Adds the products of eight inputs.
  MAGNITUDE_INLINE void add_products(const Words codes[2], int8x16_t inputs) {
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        pairs[pair][i] = vmmlaq_s32(pairs[pair][i], inputs, vreinterpretq_s8_u32(codes[pair].part[i]));
      }
    }
  }
  MAGNITUDE_INLINE float32x4_t values(int i) const {
    const int64x2_t first = vreinterpretq_s64_s32(pairs[0][i]), second = vreinterpretq_s64_s32(pairs[1][i]);
    return combined(vreinterpretq_s32_s64(vzip1q_s64(first, second)), vreinterpretq_s32_s64(vzip2q_s64(first, second)));
  }
  MAGNITUDE_INLINE Floats values() const { return {{values(0), values(1), values(2), values(3)}}; }
};

#else

MAGNITUDE_INLINE void arrange(Words*) {}

struct PanelSums : Planes {
  MAGNITUDE_INLINE void add_products(const Words codes[2], int8x16_t inputs) {
    Planes::add_products<0>(codes[0], inputs);
    Planes::add_products<1>(codes[1], inputs);
  }
};

#endif

// Keeps what a type unpacks: for many tokens.
template <class Type>
struct PanelSink {
  Panel* panels;

  template <int b, int j>
  MAGNITUDE_INLINE void codes(Words words) {
    panels[b].codes[j] = signed_codes<Type::offset>(words);
    if constexpr (j % 2 == 1) arrange(panels[b].codes + j - 1);
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
      if constexpr (j % part_codes == 0) dots[t] = {};
      dots[t].template add_products<j % 2>(codes, vld1q_s8(block(t, b).planes[j / 2]));
      if constexpr (j % part_codes == part_codes - 1) dot[j / part_codes][t] = dots[t].values();
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
    vst1q_s8(block->planes[i / 8], vcombine_s8(vrshrn_n_s16(q, 8), vmovn_s16(q)));
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

// Adds the products of inputs [first, first + count) of a block to the sums of T tokens.
template <int T, int first, int count>
MAGNITUDE_INLINE void accumulate_part(const Panel& panel, const Floats& scale, const ActivationBlock* const* x,
                                      Floats* sums) {
  PanelSums dots[T];
#pragma GCC unroll 4
  for (int g = first / 8; g < (first + count) / 8; ++g) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) dots[t].add_products(panel.codes + 2 * g, vld1q_s8(x[t]->planes[g]));
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    sums[t] = fma(dots[t].values(), multiply(scale, broadcast(x[t]->scale)), sums[t]);
  }
}

// Adds `count` blocks of 16 rows to the sums of T tokens, whose activations lie x_bytes apart.
template <class Type, int T>
inline void accumulate(const Panel* panels, int count, const uint8_t* xq, size_t x_bytes, Floats* sums) {
  for (int b = 0; b < count; ++b) {
    const Panel& panel = panels[b];
    const ActivationBlock* x[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes) + b;
    if constexpr (Type::has_halves) {
      accumulate_part<T, 0, 16>(panel, panel.scale, x, sums);
      accumulate_part<T, 16, 16>(panel, panel.second, x, sums);
    } else {
      accumulate_part<T, 0, 32>(panel, panel.scale, x, sums);
    }
#pragma GCC unroll 8
    for (int t = 0; Type::has_minimum && t < T; ++t) {
      sums[t] = fma(panel.second, broadcast(x[t]->scaled_sum), sums[t]);
    }
  }
}

}  // namespace
}  // namespace magnitude
