// Plain C++ decoding of weights, one block of 32 at a time: the clear twin of lanes_unpack.h.
#pragma once

#include <cstring>

#include "blocks.h"

namespace magnitude {
namespace {

uint16_t read_u16(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }

uint32_t read_u32(const uint8_t* bytes) { return read_u16(bytes) | static_cast<uint32_t>(read_u16(bytes + 2)) << 16; }

float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Exact, subnormals and infinities included; a NaN stays one.
float float_from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x400) return float_from_bits(sign | ((magnitude << 13) + 0x38000000));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

// Rounds to nearest even; what is too large becomes infinity, a NaN a quiet one.
uint16_t f16_from_float(float value) {
  const uint32_t bits = bits_from_float(value), magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return sign | 0x7c00;   // 65520 and above round to infinity
  if (magnitude >= 0x38800000) {
    const uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | rounded >> 13);
  }
  // Below 2^-14 the result is a multiple of 2^-24: adding 0.5 puts that unit at the last bit of a float32.
  const float aligned = float_from_bits(magnitude) + 0.5f;
  return static_cast<uint16_t>(sign | (bits_from_float(aligned) - 0x3f000000));
}

float float_from_bf16(uint16_t half) { return float_from_bits(static_cast<uint32_t>(half) << 16); }

// One block of 32 weights: w[j] = scale[j / 16] * code[j] + minimum.
struct Block {
  int16_t code[kBlock];   // offset removed
  float scale[2];         // of each half; equal but for Q6_K
  float minimum;          // signed as it is added; 0 for types without one
};

void set_scale(Block* block, float scale, float minimum) {
  block->scale[0] = block->scale[1] = scale;
  block->minimum = minimum;
}

void set_nibbles(Block* block, const uint8_t* qs, uint32_t high_bits, int offset) {
  for (int j = 0; j < 16; ++j) {
    block->code[j] = static_cast<int16_t>((qs[j] & 15) + (high_bits >> j & 1) * 16) - offset;
    block->code[j + 16] = static_cast<int16_t>((qs[j] >> 4) + (high_bits >> (j + 16) & 1) * 16) - offset;
  }
}

// decode(row, b, block): block b (of 32 elements) of a row. One struct per type. has_halves: two scales in 32 elements.
struct Q4_0 {
  static constexpr bool has_minimum = false, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b) * kBytesQ4_0;
    set_scale(block, float_from_f16(read_u16(bytes)), 0);
    set_nibbles(block, bytes + 2, 0, 8);
  }
};

struct Q4_1 {
  static constexpr bool has_minimum = true, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b) * kBytesQ4_1;
    set_scale(block, float_from_f16(read_u16(bytes)), float_from_f16(read_u16(bytes + 2)));
    set_nibbles(block, bytes + 4, 0, 0);
  }
};

struct Q5_0 {
  static constexpr bool has_minimum = false, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b) * kBytesQ5_0;
    set_scale(block, float_from_f16(read_u16(bytes)), 0);
    set_nibbles(block, bytes + 6, read_u32(bytes + 2), 16);
  }
};

struct Q5_1 {
  static constexpr bool has_minimum = true, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b) * kBytesQ5_1;
    set_scale(block, float_from_f16(read_u16(bytes)), float_from_f16(read_u16(bytes + 2)));
    set_nibbles(block, bytes + 8, read_u32(bytes + 4), 0);
  }
};

struct Q8_0 {
  static constexpr bool has_minimum = false, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b) * kBytesQ8_0;
    set_scale(block, float_from_f16(read_u16(bytes)), 0);
    for (int j = 0; j < kBlock; ++j) block->code[j] = static_cast<int8_t>(bytes[2 + j]);
  }
};

// Scale and minimum of sub-block s of a Q4_K or Q5_K block, which both begin d, dmin, 12 scale bytes.
void set_k_scale(Block* block, const uint8_t* bytes, int s) {
  const uint8_t* packed = bytes + 4;
  int scale, minimum;
  if (s < 4) {
    scale = packed[s] & 63;
    minimum = packed[s + 4] & 63;
  } else {
    scale = (packed[s + 4] & 15) | packed[s - 4] >> 6 << 4;
    minimum = packed[s + 4] >> 4 | packed[s] >> 6 << 4;
  }
  const float d = float_from_f16(read_u16(bytes)), dmin = float_from_f16(read_u16(bytes + 2));
  set_scale(block, d * static_cast<float>(scale), -(dmin * static_cast<float>(minimum)));
}

struct Q4_K {
  static constexpr bool has_minimum = true, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b / 8) * kBytesQ4_K;
    const int s = b % 8;
    set_k_scale(block, bytes, s);
    const uint8_t* qs = bytes + 16 + s / 2 * 32;
    for (int j = 0; j < kBlock; ++j) block->code[j] = qs[j] >> (s % 2 * 4) & 15;
  }
};

struct Q5_K {
  static constexpr bool has_minimum = true, has_halves = false;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b / 8) * kBytesQ5_K;
    const int s = b % 8;
    set_k_scale(block, bytes, s);
    const uint8_t *qh = bytes + 16, *qs = bytes + 48 + s / 2 * 32;
    for (int j = 0; j < kBlock; ++j) {
      block->code[j] = static_cast<int16_t>((qs[j] >> (s % 2 * 4) & 15) | (qh[j] >> s & 1) << 4);
    }
  }
};

struct Q6_K {
  static constexpr bool has_minimum = false, has_halves = true;
  static void decode(const uint8_t* row, int b, Block* block) {
    const uint8_t* bytes = row + static_cast<size_t>(b / 8) * kBytesQ6_K;
    const int half = b % 8 / 4, s = b % 4;
    const uint8_t *ql = bytes + half * 64 + s % 2 * 32, *qh = bytes + 128 + half * 32;
    const float d = float_from_f16(read_u16(bytes + 208));
    for (int i = 0; i < 2; ++i) {
      block->scale[i] = d * static_cast<float>(static_cast<int8_t>(bytes[192 + b % 8 * 2 + i]));
    }
    block->minimum = 0;
    for (int j = 0; j < kBlock; ++j) {
      const int low = ql[j] >> (s / 2 * 4) & 15, high = qh[j] >> (s * 2) & 3;
      block->code[j] = static_cast<int16_t>((low | high << 4) - 32);
    }
  }
};

struct F32 {
  static constexpr int bytes = 4;
  static float decode(const uint8_t* element) { return float_from_bits(read_u32(element)); }
};

struct F16 {
  static constexpr int bytes = 2;
  static float decode(const uint8_t* element) { return float_from_f16(read_u16(element)); }
};

struct BF16 {
  static constexpr int bytes = 2;
  static float decode(const uint8_t* element) { return float_from_bf16(read_u16(element)); }
};

}  // namespace
}  // namespace magnitude
