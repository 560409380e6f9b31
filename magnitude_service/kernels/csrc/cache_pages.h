// The bytes of one head's keys or values in a page. Plain data: every instruction set includes this file.
//
// A position's D elements are a row of cells and, for the block types, B = ceil(D / 32) scales, each an f16 of 32
// elements. D need not be a multiple of 32: the cells of a last, incomplete block exist and mean nothing.
//
//   type        cells           element j
//   F32         D of 4 bytes    cell j
//   F16, BF16   D of 2 bytes    cell j
//   Q8_0        32*B bytes      scale[j / 32] * (cell j - 128)
//   Q4_0        16*B bytes      scale[j / 32] * (nibble - 8): of cell 16*(j / 32) + j % 16, low where j % 32 < 16, else high
//
// A page of values holds the rows as they are, a page of keys transposed, so that a vector of one element of adjacent
// positions is one load; scales stand apart, so that they never divide such a vector:
//
//   values: [32 positions][cells] | [32 positions][B] scales        keys: [cells][32 positions] | [B][32 positions] scales
//
// No byte is shared by two positions: they may be stored at the same time.
#pragma once

#include "ops.h"

namespace magnitude {

struct PageShape {
  int cells;        // of a position
  int cell_bytes;
  int scales;       // of a position

  constexpr size_t cells_bytes() const { return static_cast<size_t>(kPageTokens) * cells * cell_bytes; }
  constexpr size_t bytes() const { return cells_bytes() + static_cast<size_t>(kPageTokens) * scales * 2; }
};

static constexpr PageShape page_shape(CacheType type, int D) {
  const int blocks = (D + kBlock - 1) / kBlock;
  switch (type) {
    case CacheType::F32: return {D, 4, 0};
    case CacheType::F16: return {D, 2, 0};
    case CacheType::BF16: return {D, 2, 0};
    case CacheType::Q8_0: return {blocks * kBlock, 1, blocks};
    case CacheType::Q4_0: return {blocks * kBlock / 2, 1, blocks};
  }
  return {0, 0, 0};
}

// Positions of a chunk that a row sees: [begin, end), both 0 where there are none.
struct Visible {
  int begin, end;
};

static inline Visible visible_of_row(const AttentionArgs& args, int r) {
  constexpr int tokens = kChunkPages * kPageTokens;
  const int64_t end = int64_t{args.limit[r]} - args.first_position, begin = end - args.window;
  if (end <= 0 || begin >= tokens) return {0, 0};
  return {static_cast<int>(begin < 0 ? 0 : begin), static_cast<int>(end < tokens ? end : tokens)};
}

constexpr int kCodeOffsetQ8_0 = 128, kCodeOffsetQ4_0 = 8;   // a cell holds code + offset
constexpr float kCodeMaxQ8_0 = 127.0f;

}  // namespace magnitude
