// Attention over pages of the key/value cache: scores with a lane per position, outputs with a lane per element.
//
// A few rows read the pages as they are, and convert each element once for all of them. Many rows do so with a copy of
// the pages in float32, which stays in the second-level cache; a page of keys even in the first.
#pragma once

#include "lanes_cache.h"

namespace magnitude {
namespace {

constexpr int kChunkTokens = kChunkPages * kPageTokens;
constexpr int kPageVectors = kPageTokens / kLanes;
constexpr int kScoreStride = kChunkTokens + kLanes;   // rows do not share one cache set
static_assert(kPageVectors % kAttentionVectors == 0, "a page is a whole number of register tiles");

size_t scores_bytes(int R) { return static_cast<size_t>(R) * kScoreStride * sizeof(float); }

size_t attention_scratch_bytes(int R, int D) {
  const size_t unpacked = R > kAttentionRows ? static_cast<size_t>(kChunkTokens) * D * sizeof(float) : 0;
  return scores_bytes(R) + unpacked;
}

// Pages of a chunk that some row sees, [begin, end).
inline Visible visible_pages(const AttentionArgs& args) {
  int begin = kChunkPages, end = 0;
  for (int r = 0; r < args.R; ++r) {
    const Visible seen = visible_of_row(args, r);
    if (seen.end == 0) continue;
    const int first = seen.begin / kPageTokens, last = (seen.end + kPageTokens - 1) / kPageTokens;
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
  }
  return {begin < end ? begin : 0, end};
}

// e[r][p] = scale * (q_r · k_p) for R rows from r on and all positions of a page. `next` is what will be read after it,
// or null.
template <class Keys, int R>
inline void score_page(const AttentionArgs& args, const PageShape& shape, int r, int page, const uint8_t* keys,
                       const uint8_t* next) {
  constexpr int V = kAttentionVectors;
  const float* q = args.q + r * args.q_stride;
  for (int position = 0; position < kPageTokens; position += V * kLanes) {
    const uint8_t* prefetched = position == 0 ? next : nullptr;
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[i][v] = broadcast(0);
    }
    for (int begin = 0; begin < args.D; begin += Keys::run) {
      const int count = args.D - begin < Keys::run ? args.D - begin : Keys::run;
      Keys cells[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) cells[v].seek(keys, shape, begin, position + v * kLanes);
      for (int d = 0; d < count; ++d) {
        if (prefetched != nullptr) prefetch_part(prefetched, begin + d, Keys::row_bytes);
        Floats k[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) k[v] = cells[v].load(d);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) {
          const Floats element = broadcast(q[i * args.q_stride + begin + d]);
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) sums[i][v] = fma(element, k[v], sums[i][v]);
        }
      }
    }
    float* e = static_cast<float*>(args.scratch) + static_cast<size_t>(r) * kScoreStride + page * kPageTokens;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        store(e + i * kScoreStride + position + v * kLanes, multiply(sums[i][v], broadcast(args.scale)));
      }
    }
  }
}

inline Floats capped(Floats score, float softcap) {
  const Floats power = exponential(multiply(score, broadcast(2 / softcap)));
  return subtract(broadcast(softcap), divide(broadcast(2 * softcap), add(broadcast(1.0f), power)));
}

// body(p, keep) for every vector that has a position of `seen`; keep(value, other) has `other` in the lanes outside.
template <class Body>
inline void over_visible(const Visible& seen, Body&& body) {
  for (int p = seen.begin / kLanes * kLanes; p < seen.end; p += kLanes) {
    const int skipped = seen.begin - p, lanes = seen.end - p;
    body(p, [&](Floats value, Floats other) {
      if (lanes < kLanes) value = keep_first(value, lanes, other);
      return skipped > 0 ? keep_first(other, skipped, value) : value;
    });
  }
}

// Scores of a row to exp(score - m). Slots outside hold anything and are never used.
inline void exponentiate(const AttentionArgs& args, int r) {
  float* e = static_cast<float*>(args.scratch) + static_cast<size_t>(r) * kScoreStride;
  const Visible seen = visible_of_row(args, r);
  Floats maxima = broadcast(-__builtin_inff()), sums = broadcast(0);
  over_visible(seen, [&](int p, auto keep) {
    Floats score = load(e + p);
    if (args.softcap != 0) {
      score = capped(score, args.softcap);
      store(e + p, score);
    }
    maxima = keep(maximum(score, maxima), maxima);
  });
  const float m = largest(maxima) + 0.0f;
  over_visible(seen, [&](int p, auto keep) {
    const Floats value = exponential(subtract(load(e + p), broadcast(m)));
    sums = keep(add(sums, value), sums);
    store(e + p, value);
  });
  args.m[r] = m;
  args.l[r] = tree_sum(sums);
}

// R rows of a register tile, and what they see: [begin, end) of each, and of all of them at once.
template <int R>
struct RowTile {
  int r;
  Visible seen[R], common;

  RowTile(const AttentionArgs& args, int first_row) : r(first_row), common{0, kChunkTokens} {
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      seen[i] = visible_of_row(args, r + i);
      common.begin = seen[i].begin > common.begin ? seen[i].begin : common.begin;
      common.end = seen[i].end < common.end ? seen[i].end : common.end;
    }
    if (common.end <= common.begin) common = {kChunkTokens, kChunkTokens};   // each row by itself
  }
};

// Positions [begin, end) page by page: body(slot, weight) for those of each page, after enter(page).
template <class Enter, class Body>
MAGNITUDE_INLINE void over_positions(int begin, int end, Enter&& enter, Body&& body) {
  for (int p = begin; p < end;) {
    const int page = p / kPageTokens, stop = (page + 1) * kPageTokens < end ? (page + 1) * kPageTokens : end;
    enter(page);
    for (; p < stop; ++p) body(p);
  }
}

// o[i][d…] = sum_p e[i][p] * v_p[d…] for V vectors of the head from element d on, of which the last has `lanes`.
template <class Values, int R, int V, bool prefetches>
inline void weigh_values(const AttentionArgs& args, const PageShape& shape, const RowTile<R>& tile,
                         const uint8_t* const* pages, int d, int lanes) {
  const float* e = static_cast<float*>(args.scratch) + static_cast<size_t>(tile.r) * kScoreStride;
  const uint8_t *page = nullptr, *next = nullptr;
  const auto enter = [&](int index) {
    page = pages[index];
    if (prefetches) next = d == 0 && (index + 1) * kPageTokens < tile.common.end ? pages[index + 1] : nullptr;
  };
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[i][v] = broadcast(0);
  }
  const auto weigh_alone = [&](int i, int begin, int end) __attribute__((always_inline)) {
    over_positions(begin, end, enter, [&](int p) {
      const Floats weight = broadcast(e[i * kScoreStride + p]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sums[i][v] = fma(weight, Values::load(page, shape, p % kPageTokens, d + v * kLanes, lanes), sums[i][v]);
      }
    });
  };
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    weigh_alone(i, tile.seen[i].begin, tile.seen[i].end < tile.common.begin ? tile.seen[i].end : tile.common.begin);
  }
  over_positions(tile.common.begin, tile.common.end, enter, [&](int p) {
    if (prefetches && next != nullptr) prefetch_part(next, p % kPageTokens, Values::row_bytes(shape));
    Floats value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) value[v] = Values::load(page, shape, p % kPageTokens, d + v * kLanes, lanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Floats weight = broadcast(e[i * kScoreStride + p]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[i][v] = fma(weight, value[v], sums[i][v]);
    }
  });
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    weigh_alone(i, tile.common.end, tile.seen[i].end);
    float* o = args.o + static_cast<size_t>(tile.r + i) * args.D + d;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store_part(o + v * kLanes, sums[i][v], lanes);
  }
}

template <class Values, int R, bool prefetches>
inline void weigh_rows(const AttentionArgs& args, const PageShape& shape, int r, const uint8_t* const* pages) {
  const RowTile<R> tile(args, r);
  constexpr int V = R <= kAttentionRowsFew ? 2 * kAttentionVectors : kAttentionVectors;   // fewer passes over the pages
  int d = 0;
  for (; d + V * kLanes <= args.D; d += V * kLanes) {
    weigh_values<Values, R, V, prefetches>(args, shape, tile, pages, d, kLanes);
  }
  for (; d < args.D; d += kLanes) {
    const int lanes = args.D - d < kLanes ? args.D - d : kLanes;
    weigh_values<Values, R, 1, prefetches>(args, shape, tile, pages, d, lanes);
  }
}

// At most kAttentionRows rows, on the pages as they are.
template <class Type>
struct FewRows {
  const AttentionArgs& args;

  template <int R>
  void operator()() const {
    const PageShape shape = page_shape(args.cache_type, args.D);
    const Visible pages = visible_pages(args);
    for (int page = pages.begin; page < pages.end; ++page) {
      const uint8_t* next = page + 1 < pages.end ? args.keys[page + 1] : args.values[pages.begin];
      score_page<typename Type::Keys, R>(args, shape, 0, page, args.keys[page], next);
    }
    for (int r = 0; r < R; ++r) exponentiate(args, r);
    weigh_rows<typename Type::Values, R, true>(args, shape, 0, args.values);
  }
};

struct ScoreTile {
  const AttentionArgs& args;
  const PageShape& shape;
  int r, page;
  const uint8_t* keys;

  template <int R>
  void operator()() const {
    score_page<FloatKeys<F32>, R>(args, shape, r, page, keys, nullptr);
  }
};

struct WeighTile {
  const AttentionArgs& args;
  const PageShape& shape;
  int r;
  const uint8_t* const* pages;

  template <int R>
  void operator()() const {
    weigh_rows<FloatValues<F32>, R, false>(args, shape, r, pages);
  }
};

// body(r, count) for the register tiles of all rows.
template <class Body>
inline void over_tiles(int R, Body&& body) {
  for (int r = 0; r < R; r += kAttentionRows) body(r, R - r < kAttentionRows ? R - r : kAttentionRows);
}

// Many rows, on float32 pages: those of the cache, or a copy.
template <class Type>
void attend_many(const AttentionArgs& args) {
  const PageShape shape = page_shape(args.cache_type, args.D), unpacked = page_shape(CacheType::F32, args.D);
  const Visible seen = visible_pages(args);
  const bool is_unpacked = args.cache_type == CacheType::F32;
  float* copies = static_cast<float*>(args.scratch) + scores_bytes(args.R) / sizeof(float);
  for (int page = seen.begin; page < seen.end; ++page) {
    const uint8_t* keys = args.keys[page];
    if (!is_unpacked) {
      const uint8_t* next = page + 1 < seen.end ? args.keys[page + 1] : args.values[seen.begin];
      unpack_keys<typename Type::Keys>(keys, shape, args.D, next, copies);
      keys = reinterpret_cast<const uint8_t*>(copies);
    }
    over_tiles(args.R, [&](int r, int count) {
      with_count<kAttentionRows>(count, ScoreTile{args, unpacked, r, page, keys});
    });
  }
  for (int r = 0; r < args.R; ++r) exponentiate(args, r);
  const uint8_t* values[kChunkPages] = {};
  for (int page = seen.begin; page < seen.end; ++page) {
    values[page] = args.values[page];
    if (is_unpacked) continue;
    float* copy = copies + static_cast<size_t>(page) * kPageTokens * args.D;
    const uint8_t* next = page + 1 < seen.end ? args.values[page + 1] : nullptr;
    unpack_values<typename Type::Values>(values[page], shape, args.D, next, copy);
    values[page] = reinterpret_cast<const uint8_t*>(copy);
  }
  over_tiles(args.R, [&](int r, int count) {
    with_count<kAttentionRows>(count, WeighTile{args, unpacked, r, values});
  });
}

template <class Type>
void attend(const AttentionArgs& args) {
  if (args.R > kAttentionRows) return attend_many<Type>(args);
  with_count<kAttentionRows>(args.R, FewRows<Type>{args});
}

void attention_chunk(const AttentionArgs& args) {
  switch (args.cache_type) {
    case CacheType::F32: return attend<FloatPages<F32>>(args);
    case CacheType::F16: return attend<FloatPages<F16>>(args);
    case CacheType::BF16: return attend<FloatPages<BF16>>(args);
    case CacheType::Q8_0: return attend<Pages<KeysQ8_0, ValuesQ8_0>>(args);
    case CacheType::Q4_0: return attend<Pages<KeysQ4_0, ValuesQ4_0>>(args);
  }
}

void attention_fold(float* m1, float* l1, float* o1, const float* m2, const float* l2, const float* o2, int R, int D) {
  over_vectors(R, [&](int first, int rows) {
    const Floats before = load_part(m1 + first, rows), chunk = load_part(m2 + first, rows);
    const Floats m = maximum(chunk, before);
    alignas(64) float a[kLanes], b[kLanes], largest[kLanes];
    store(largest, m);
    store(a, exponential(subtract(before, m)));
    store(b, exponential(subtract(chunk, m)));
    for (int i = 0; i < rows; ++i) {
      const int r = first + i;
      float* into = o1 + static_cast<size_t>(r) * D;
      const float* from = o2 + static_cast<size_t>(r) * D;
      if (l2[r] == 0) continue;   // nothing of the chunk was visible
      if (l1[r] == 0) {           // nothing was visible before
        m1[r] = m2[r];
        l1[r] = l2[r];
        __builtin_memcpy(into, from, static_cast<size_t>(D) * sizeof(float));
        continue;
      }
      m1[r] = largest[i];
      l1[r] = l1[r] * a[i] + l2[r] * b[i];
      over_vectors(D, [&](int d, int lanes) {
        const Floats old = multiply(load_part(into + d, lanes), broadcast(a[i]));
        store_part(into + d, add(old, multiply(load_part(from + d, lanes), broadcast(b[i]))), lanes);
      });
    }
  });
}

void attention_finish(const float* m, const float* l, float* o, const float* sinks, int R, int D) {
  for (int r = 0; r < R; ++r, o += D) {
    float a = 1, total = l[r];
    if (sinks != nullptr) {
      const float largest = sinks[r] > m[r] ? sinks[r] : m[r];
      a = exponential(m[r] - largest);
      total = l[r] * a + exponential(sinks[r] - largest);
    }
    over_vectors(D, [&](int d, int lanes) {
      const Floats scaled = multiply(load_part(o + d, lanes), broadcast(a));
      store_part(o + d, divide(scaled, broadcast(total)), lanes);
    });
  }
}

}  // namespace
}  // namespace magnitude
