// Products of many tokens with quantised weights on matrix tiles (AMX-INT8). Everything else is AVX-512's.
//
// A panel's words of codes are the rows of a tile as they lie, and so are the two planes of an activation:
//
//   tokens, 16 rows of 32 bytes        codes, 8 rows of 64 bytes         sums, 16 rows of 64 bytes
//   token 0    q0 q1 q2 … q31          j = 0   row0 k0…k3 | row1 …       token 0    row0 | row1 | … | row15
//   …                            x     …                            =    …
//   token 15   q0 q1 q2 … q31          j = 7   row0 k28…k31 | …          token 15   row0 | row1 | … | row15
//
// so that a row of sums is what vpdpbusd leaves in a vector, and is finished like that. While a block is finished in
// vectors, the tiles multiply the next: about 64 cycles of each 16 x 16 x 32 products are the vectors', 32 the tiles'.
// These are counts of instructions; nobody has timed it.
#pragma once

#include "lanes_matmul.h"

namespace magnitude {
namespace {

constexpr int kTileRows = 16;   // tokens of a tile: as many sums as fit beside the rest in 32 registers

// The tiles' numbers. Sums have two pairs, which take turns: none waits until the last one's were stored.
constexpr int kHighSums = 0, kLowSums = 2, kHighInputs = 4, kLowInputs = 5, kCodes = 6;

// What ldtilecfg reads. Tiles that are not used stay empty.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfiguration) == 64, "all that the instruction reads");

// Of products over `words` words of four inputs.
constexpr TileConfiguration tile_configuration(int words) {
  TileConfiguration configuration;
  for (int tile = kHighSums; tile < kHighInputs; ++tile) configuration.set(tile, kTileRows, 4 * kLanes);
  configuration.set(kHighInputs, kTileRows, 4 * words);
  configuration.set(kLowInputs, kTileRows, 4 * words);
  configuration.set(kCodes, words, 4 * kLanes);
  return configuration;
}

// The tiles of this thread, shaped while this lives. Released, they cost a switch of threads nothing.
class Tiles {
 public:
  explicit Tiles(const TileConfiguration& configuration) { __asm__ volatile("ldtilecfg %0" : : "m"(configuration)); }
  ~Tiles() { __asm__ volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Statements of our own: the intrinsics want literals for numbers, and gcc 12's do not say that they read memory.
template <int tile>
MAGNITUDE_INLINE void load_tile(const void* from, size_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(tile), "r"(from), "r"(stride) : "memory");
}
template <int tile>
MAGNITUDE_INLINE void store_tile(Words* to) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(tile), "r"(to), "r"(sizeof(Words)) : "memory");
}
// sums = inputs * kCodes: signed by unsigned bytes.
template <int sums, int inputs>
MAGNITUDE_INLINE void multiply_tiles() {
  __asm__ volatile("tilezero %%tmm%c0\n\ttdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(inputs), "i"(kCodes));
}

// Sums of a part of a block as the tiles leave them: of 16 tokens, a lane per row.
struct PartSums {
  Words high[kTileRows], low[kTileRows];
};

// 16 rows times kTileRows tokens, whose activations lie x_bytes apart. A part is a block, or a half of one with two scales.
template <class Type>
struct TileProduct {
  static constexpr int parts = Type::has_halves ? 2 : 1, part_words = 8 / parts;
  const Panel* panels;
  int steps;                // parts in all
  const uint8_t* xq;
  size_t x_bytes;
  PartSums* part_sums;      // of the part that is finished next
  Floats sum[kTileRows];

  MAGNITUDE_INLINE const ActivationBlock& block(int t, int b) const {
    return reinterpret_cast<const ActivationBlock*>(xq + t * x_bytes)[b];
  }
  template <int turn>
  MAGNITUDE_INLINE void multiply_in_turn(int step) const {
    const ActivationBlock& x = block(0, step / parts);
    const int first = step % parts * part_words;
    load_tile<kCodes>(panels[step / parts].codes + first, sizeof(Words));
    load_tile<kHighInputs>(x.high + first, x_bytes);
    multiply_tiles<kHighSums + turn, kHighInputs>();
    load_tile<kLowInputs>(x.low + first, x_bytes);
    multiply_tiles<kLowSums + turn, kLowInputs>();
  }
  template <int turn>
  MAGNITUDE_INLINE void store_in_turn() const {
    store_tile<kHighSums + turn>(part_sums->high);
    store_tile<kLowSums + turn>(part_sums->low);
  }
  // Two turns as two branches: a tile's number is part of its instruction.
  MAGNITUDE_INLINE void multiply_part(int step) const { step % 2 ? multiply_in_turn<1>(step) : multiply_in_turn<0>(step); }
  MAGNITUDE_INLINE void store_part(int step) const { step % 2 ? store_in_turn<1>() : store_in_turn<0>(); }

  template <int part>
  MAGNITUDE_INLINE void finish_part(int b) {
    const Floats scale = part == 0 ? panels[b].scale : panels[b].second;
#pragma GCC unroll 16
    for (int t = 0; t < kTileRows; ++t) {
      const ActivationBlock& x = block(t, b);
      const Words low = _mm512_add_epi32(part_sums->low[t], sum_start<Type, part>(x));
      sum[t] = fma(combined(part_sums->high[t], low), multiply(scale, broadcast(x.scale)), sum[t]);
      if (Type::has_minimum) sum[t] = fma(panels[b].second, broadcast(x.scaled_sum), sum[t]);
    }
  }
  // Finishes a part of block b while the tiles multiply the part after it.
  template <int part>
  MAGNITUDE_INLINE void advance(int b) {
    const int next = b * parts + part + 1;
    if (next < steps) multiply_part(next);
    finish_part<part>(b);
    if (next < steps) store_part(next);
  }
};

// The sums of `count` blocks of 16 rows times kTileRows tokens.
template <class Type>
__attribute__((noinline)) void multiply_panels(const Panel* panels, int count, const uint8_t* xq, size_t x_bytes,
                                               Floats* sums) {
  PartSums part_sums;
  TileProduct<Type> product{panels, count * TileProduct<Type>::parts, xq, x_bytes, &part_sums, {}};
  product.multiply_part(0);
  product.store_part(0);
  for (int b = 0; b < count; ++b) {
    product.template advance<0>(b);
    if constexpr (TileProduct<Type>::parts == 2) product.template advance<1>(b);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTileRows; ++t) sums[t] = product.sum[t];
}

// As matmul_blocks, for a multiple of kTileRows tokens.
template <class Type>
void matmul_whole_tiles(const MatmulArgs& args) {
  static constexpr TileConfiguration configuration = tile_configuration(TileProduct<Type>::part_words);
  const Tiles tiles(configuration);
  const size_t x_bytes = quantized_row_bytes(args.K);
  const MatmulScratch scratch(args.scratch, args.K);
  for (int n = args.n_begin; n < args.n_end; n += kRowGroup) {
    const int count = args.n_end - n < kRowGroup ? args.n_end - n : kRowGroup;
    PanelSink<Type> sink{scratch.panels};
    const uint8_t* next = args.weights + static_cast<size_t>(n + kRowGroup) * args.row_bytes;
    unpack_part<Type>(rows_of_group<Type>(args, n, count, scratch.copy), args.K / kBlock, next, sink);
    for (int m = 0; m < args.M; m += kTileRows) {
      Floats sums[kTileRows];
      multiply_panels<Type>(scratch.panels, args.K / kBlock, args.xq + m * x_bytes, x_bytes, sums);
      for (int t = 0; t < kTileRows; ++t) store_outputs(args, m + t, n, count, sums[t]);
    }
  }
}

// Whole tiles of tokens by tiles, the rest of them by vectors.
template <class Type>
void matmul_tiles(const MatmulArgs& args) {
  const int whole = args.M / kTileRows * kTileRows;
  MatmulArgs part = args;
  part.M = whole;
  if (whole) matmul_whole_tiles<Type>(part);
  part.M = args.M - whole;
  part.xq += whole * quantized_row_bytes(args.K);
  part.y += whole * args.y_stride;
  if (part.M) matmul_blocks<Type>(part);
}

}  // namespace
}  // namespace magnitude
