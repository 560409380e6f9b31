// Attention over pages of the key/value cache: scores with a lane per position, outputs with a lane per element.
//
// Rows go through a chunk in tiles, so that a key or value is loaded and converted once for all rows of a tile.
#pragma once

#include "lanes_matmul.h"
#include "lanes_vector.h"

namespace magnitude {
namespace {

constexpr int kChunkTokens = kChunkPages * kPageTokens;
constexpr int kPageVectors = kPageTokens / kLanes;

size_t attention_scratch_bytes(int) { return kAttentionRows * kChunkTokens * sizeof(float); }

// R rows (at most kAttentionRows) of a tile and what they see of the chunk.
template <int R>
struct AttentionTile {
  const AttentionArgs& args;
  int r;                 // the first row
  int visible[R];        // positions of the chunk that a row sees
  int visible_to_all, visible_to_any;
  float* e;              // [R][kChunkTokens]

  AttentionTile(const AttentionArgs& arguments, int first_row)
      : args(arguments), r(first_row), visible_to_all(kChunkTokens), visible_to_any(0),
        e(static_cast<float*>(arguments.scratch)) {
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const int seen = args.limit[r + i] - args.first_position;
      visible[i] = seen < 0 ? 0 : seen > kChunkTokens ? kChunkTokens : seen;
      if (visible[i] < visible_to_all) visible_to_all = visible[i];
      if (visible[i] > visible_to_any) visible_to_any = visible[i];
    }
  }
};

// e[i][p] = scale * (q_i · k_p) for the positions of every page that a row of the tile sees.
template <class Element, int R>
inline void compute_scores(const AttentionTile<R>& tile) {
  const AttentionArgs& args = tile.args;
  const float* q = args.q + tile.r * args.q_stride;
  for (int page = 0; page * kPageTokens < tile.visible_to_any; ++page) {
    const uint8_t* keys = args.keys[page];
    Floats sums[R][kPageVectors];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kPageVectors; ++v) sums[i][v] = broadcast(0);
    }
    for (int d = 0; d < args.D; ++d, keys += kPageTokens * Element::bytes) {
      Floats k[kPageVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kPageVectors; ++v) k[v] = Element::load16(keys + v * kLanes * Element::bytes);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const Floats element = broadcast(q[i * args.q_stride + d]);
#pragma GCC unroll 8
        for (int v = 0; v < kPageVectors; ++v) sums[i][v] = fma(element, k[v], sums[i][v]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      float* e = tile.e + i * kChunkTokens + page * kPageTokens;
#pragma GCC unroll 8
      for (int v = 0; v < kPageVectors; ++v) store(e + v * kLanes, multiply(sums[i][v], broadcast(args.scale)));
    }
  }
}

// Scores of one row to exp(score - m); slots behind the visible ones hold anything and are never used.
inline void exponentiate(float* e, int visible, float* m, float* l) {
  Floats maxima = broadcast(-__builtin_inff()), sums = broadcast(0);
  over_vectors(visible, [&](int i, int lanes) {
    maxima = keep_first(maximum(load(e + i), maxima), lanes, maxima);
  });
  *m = largest(maxima) + 0.0f;
  over_vectors(visible, [&](int i, int lanes) {
    const Floats value = exponential(subtract(load(e + i), broadcast(*m)));
    sums = keep_first(add(sums, value), lanes, sums);
    store(e + i, value);
  });
  *l = tree_sum(sums);
}

// o[i][d…] = sum_p e[i][p] * v_p[d…] for V vectors of the head from element d on, of which the last has `lanes`.
template <class Element, int R, int V>
inline void weigh_values(const AttentionTile<R>& tile, int d, int lanes) {
  const AttentionArgs& args = tile.args;
  const size_t slot_bytes = static_cast<size_t>(args.D) * Element::bytes;
  const auto load_value = [&](int p, int v) {
    const uint8_t* at = args.values[p / kPageTokens] + p % kPageTokens * slot_bytes +
                        static_cast<size_t>(d + v * kLanes) * Element::bytes;
    return lanes == kLanes ? Element::load16(at) : load_last<Element>(at, lanes);
  };
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[i][v] = broadcast(0);
  }
  for (int p = 0; p < tile.visible_to_all; ++p) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Floats value = load_value(p, v);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) sums[i][v] = fma(broadcast(tile.e[i * kChunkTokens + p]), value, sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    for (int p = tile.visible_to_all; p < tile.visible[i]; ++p) {
      const Floats weight = broadcast(tile.e[i * kChunkTokens + p]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[i][v] = fma(weight, load_value(p, v), sums[i][v]);
    }
    float* o = args.o + static_cast<size_t>(tile.r + i) * args.D + d;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store_part(o + v * kLanes, sums[i][v], lanes);
  }
}

template <class Element, int R>
inline void attend_tile(const AttentionArgs& args, int r) {
  const AttentionTile<R> tile(args, r);
  compute_scores<Element, R>(tile);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    exponentiate(tile.e + i * kChunkTokens, tile.visible[i], &args.m[r + i], &args.l[r + i]);
  }
  int d = 0;
  for (; d + kAttentionVectors * kLanes <= args.D; d += kAttentionVectors * kLanes) {
    weigh_values<Element, R, kAttentionVectors>(tile, d, kLanes);
  }
  for (; d + kLanes <= args.D; d += kLanes) weigh_values<Element, R, 1>(tile, d, kLanes);
  if (d < args.D) weigh_values<Element, R, 1>(tile, d, args.D - d);
}

template <class Element>
struct AttentionPass {
  const AttentionArgs& args;
  int r;
  template <int R>
  void operator()() {
    attend_tile<Element, R>(args, r);
  }
};

template <class Element>
void attend(const AttentionArgs& args) {
  for (int r = 0; r < args.R; r += kAttentionRows) {
    const int count = args.R - r < kAttentionRows ? args.R - r : kAttentionRows;
    with_count<kAttentionRows>(count, AttentionPass<Element>{args, r});
  }
}

void attention_chunk(const AttentionArgs& args) {
  if (args.cache_type == CacheType::F16) return attend<F16>(args);
  return attend<F32>(args);
}

void attention_fold(float* m1, float* l1, float* o1, float m2, float l2, const float* o2, int D) {
  if (l2 == 0) return;   // nothing of the chunk was visible
  const float m = m2 > *m1 ? m2 : *m1, a = exponential(*m1 - m), b = exponential(m2 - m);
  *m1 = m;
  *l1 = *l1 * a + l2 * b;
  over_vectors(D, [&](int i, int lanes) {
    const Floats old = multiply(load_part(o1 + i, lanes), broadcast(a));
    store_part(o1 + i, add(old, multiply(load_part(o2 + i, lanes), broadcast(b))), lanes);
  });
}

void attention_finish(float l, float* o, int D) {
  over_vectors(D, [&](int i, int lanes) {
    store_part(o + i, divide(load_part(o + i, lanes), broadcast(l)), lanes);
  });
}

void store_key(const float* k, int D, int slot, CacheType type, uint8_t* page) {
  if (type == CacheType::F32) {
    float* to = reinterpret_cast<float*>(page) + slot;
    for (int d = 0; d < D; ++d) to[d * kPageTokens] = k[d];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(page) + slot;
  over_vectors(D, [&](int d, int lanes) {
    alignas(64) uint16_t halves[kLanes];
    store_f16(reinterpret_cast<uint8_t*>(halves), load_part(k + d, lanes));
    for (int i = 0; i < lanes; ++i) to[(d + i) * kPageTokens] = halves[i];
  });
}

void store_value(const float* v, int D, int slot, CacheType type, uint8_t* page) {
  if (type == CacheType::F32) {
    __builtin_memcpy(page + static_cast<size_t>(slot) * D * 4, v, static_cast<size_t>(D) * 4);
    return;
  }
  uint8_t* to = page + static_cast<size_t>(slot) * D * 2;
  over_vectors(D, [&](int d, int lanes) {
    alignas(64) uint8_t halves[kLanes * 2];
    store_f16(halves, load_part(v + d, lanes));
    __builtin_memcpy(to + d * 2, halves, static_cast<size_t>(lanes) * 2);
  });
}

}  // namespace
}  // namespace magnitude
