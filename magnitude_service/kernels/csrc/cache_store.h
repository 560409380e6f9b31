// One position's keys or values into a page, in plain C++: every table stores with this code. Included after
// f16_from_float and float_from_f16.
#pragma once

#include "cache_pages.h"

namespace magnitude {
namespace {

// Where a position's cells and scales lie in a page: every `step`-th of them.
struct PagePosition {
  uint8_t* cells;
  uint8_t* scales;
  size_t cell_step, scale_step;

  template <class Cell>
  void put(size_t index, Cell cell) const {
    __builtin_memcpy(cells + index * cell_step * sizeof(Cell), &cell, sizeof(Cell));
  }
  void put_scale(size_t index, uint16_t half) const { __builtin_memcpy(scales + index * scale_step * 2, &half, 2); }
};

inline PagePosition position_of_keys(const PageShape& shape, int slot, uint8_t* page) {
  return {page + slot * shape.cell_bytes, page + shape.cells_bytes() + slot * 2, kPageTokens, kPageTokens};
}

inline PagePosition position_of_values(const PageShape& shape, int slot, uint8_t* page) {
  return {page + static_cast<size_t>(slot) * shape.cells * shape.cell_bytes,
          page + shape.cells_bytes() + static_cast<size_t>(slot) * shape.scales * 2, 1, 1};
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The nearest integer, ties to even; exact for magnitudes below 2^22.
inline int nearest(float value) { return static_cast<int>(value + 0x1.8p+23f - 0x1.8p+23f); }

// The scale of a block as an f16, and its inverse: of the largest magnitude, or of the element that has it.
struct BlockScale {
  uint16_t half;
  float inverse;   // 0 where all codes are 0
};

inline BlockScale scale_of_block(const float* x, int count, CacheType type) {
  float extreme = 0;
  bool finite = true;
  for (int j = 0; j < count; ++j) {
    const float magnitude = __builtin_fabsf(x[j]);
    finite = finite && magnitude < __builtin_inff();
    if (magnitude > __builtin_fabsf(extreme)) extreme = x[j];
  }
  if (!finite) return {0x7e00, 0};
  const float exact = type == CacheType::Q8_0 ? __builtin_fabsf(extreme) / kCodeMaxQ8_0 : extreme / -8.0f;
  const uint16_t half = f16_from_float(exact);
  const float scale = float_from_f16(half);
  return {half, scale == 0 ? 0.0f : 1 / scale};
}

inline int clamp(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

inline void store_block_q8_0(const float* x, int count, int block, const PagePosition& to) {
  const BlockScale scale = scale_of_block(x, count, CacheType::Q8_0);
  to.put_scale(block, scale.half);
  for (int j = 0; j < kBlock; ++j) {
    const int code = j < count && scale.inverse != 0 ? clamp(nearest(x[j] * scale.inverse), -127, 127) : 0;
    to.put(static_cast<size_t>(block) * kBlock + j, static_cast<uint8_t>(code + kCodeOffsetQ8_0));
  }
}

inline void store_block_q4_0(const float* x, int count, int block, const PagePosition& to) {
  const BlockScale scale = scale_of_block(x, count, CacheType::Q4_0);
  to.put_scale(block, scale.half);
  const auto code = [&](int j) {
    return j < count && scale.inverse != 0 ? clamp(nearest(x[j] * scale.inverse), -8, 7) + kCodeOffsetQ4_0
                                           : kCodeOffsetQ4_0;
  };
  for (int j = 0; j < kBlock / 2; ++j) {
    to.put(static_cast<size_t>(block) * kBlock / 2 + j, static_cast<uint8_t>(code(j) | code(j + kBlock / 2) << 4));
  }
}

inline void store_row(const float* x, int D, CacheType type, const PagePosition& to) {
  switch (type) {
    case CacheType::F32:
      for (int d = 0; d < D; ++d) to.put(d, x[d]);
      return;
    case CacheType::F16:
      for (int d = 0; d < D; ++d) to.put(d, f16_from_float(x[d]));
      return;
    case CacheType::BF16:
      for (int d = 0; d < D; ++d) to.put(d, bf16_from_float(x[d]));
      return;
    case CacheType::Q8_0:
      for (int d = 0; d < D; d += kBlock) store_block_q8_0(x + d, D - d < kBlock ? D - d : kBlock, d / kBlock, to);
      return;
    case CacheType::Q4_0:
      for (int d = 0; d < D; d += kBlock) store_block_q4_0(x + d, D - d < kBlock ? D - d : kBlock, d / kBlock, to);
      return;
  }
}

void store_key(const float* k, int D, int slot, CacheType type, uint8_t* page) {
  store_row(k, D, type, position_of_keys(page_shape(type, D), slot, page));
}

void store_value(const float* v, int D, int slot, CacheType type, uint8_t* page) {
  store_row(v, D, type, position_of_values(page_shape(type, D), slot, page));
}

}  // namespace
}  // namespace magnitude
