// Matrix products over 16 lanes: quantised weights with a lane per row, float weights with a lane per input.
#pragma once

#include "lanes_unpack.h"

namespace magnitude {
namespace {

constexpr int kCacheLine = 64;
constexpr int kBytesPerBlockMax = kBytesQ8_0;    // the widest type, per 32 elements

constexpr int kFewTokensGroups = 4;              // groups of rows that go through a panel's inputs one after the other

// One thread's scratch: panels of a group of rows; sums of few tokens; room for a copy of the last, incomplete group.
struct MatmulScratch {
  Panel* panels;   // [K / kBlock]
  float* sums;     // [kFewTokensGroups][kFewTokens][kRowGroup]
  uint8_t* copy;

  MatmulScratch(void* scratch, int K)
      : panels(static_cast<Panel*>(scratch)),
        sums(reinterpret_cast<float*>(static_cast<uint8_t*>(scratch) + sums_at(K))),
        copy(static_cast<uint8_t*>(scratch) + copy_at(K)) {}

  static size_t blocks(int K) { return static_cast<size_t>(K + kBlock - 1) / kBlock; }
  static size_t sums_at(int K) { return blocks(K) * sizeof(Panel); }
  static size_t copy_at(int K) { return sums_at(K) + sizeof(float) * kFewTokensGroups * kFewTokens * kRowGroup; }
};

size_t matmul_scratch_bytes(int K) {
  return MatmulScratch::copy_at(K) + MatmulScratch::blocks(K) * kRowGroup * kBytesPerBlockMax;
}

inline void store_outputs(const MatmulArgs& args, int m, int n, int count, Floats sum) {
  float* y = args.y + m * args.y_stride + n;
  if (count < kLanes) {
    if (args.bias) sum = add(sum, load_first(args.bias + n, count));
    if (args.accumulate) sum = add(load_first(y, count), sum);
    store_first(y, sum, count);
  } else {
    if (args.bias) sum = add(sum, load(args.bias + n));
    if (args.accumulate) sum = add(load(y), sum);
    store(y, sum);
  }
}

// The group's rows where they lie, or copied when the last group has fewer than 16: nothing is read behind the last row.
template <class Type>
Rows rows_of_group(const MatmulArgs& args, int n, int count, uint8_t* copy) {
  const uint8_t* first = args.weights + static_cast<size_t>(n) * args.row_bytes;
  if (count == kRowGroup) return {first, args.row_bytes};
  const size_t bytes = static_cast<size_t>(args.K / Type::elements) * Type::bytes;
  for (int r = 0; r < kRowGroup; ++r) {
    __builtin_memcpy(copy + r * bytes, first + (r < count ? r : 0) * args.row_bytes, bytes);
  }
  return {copy, bytes};
}

// The rows of a part of a group.
inline Rows rows_of_part(Rows rows, int part) { return {rows.first + part * kUnpackRows * rows.stride, rows.stride}; }

// Hands on to a sink, and after every block of 32 prefetches as many bytes as the block of all rows had, each line of a
// block of the file once. Evenly spread, prefetches do not fill up the queue of misses.
template <class Type, class Sink>
struct PrefetchingSink {
  static constexpr int bytes = kUnpackRows * Type::bytes * kBlock / Type::elements;
  HeldSink<Sink> sink;
  const uint8_t* next;

  template <int b, int j>
  MAGNITUDE_INLINE void codes(RowWords words) {
    sink.template codes<b, j>(words);
  }
  template <int b, int j, int count>
  MAGNITUDE_INLINE void low_nibbles(const RowWords* words) {
    sink.template low_nibbles<b, j, count>(words);
  }
  template <int b, int j, int count>
  MAGNITUDE_INLINE void high_nibbles(const RowWords* words) {
    sink.template high_nibbles<b, j, count>(words);
  }
  template <int b>
  MAGNITUDE_INLINE void finish(RowFloats scale, RowFloats second) {
    sink.template finish<b>(scale, second);
    constexpr int first = (b * bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    for (int i = first; i < (b + 1) * bytes; i += kCacheLine) prefetch(next + i);
    if constexpr (b == Type::elements / kBlock - 1) next += (b + 1) * bytes;
  }
};

// Unpacks `blocks` blocks of 32 of the rows of a part into a sink. As many bytes from `next` on are prefetched meanwhile,
// in the order in which they lie: the memory sees one sequential stream. They may lie behind n_end, where a thread's next
// call often goes on; a prefetch of nothing does no harm.
// Not inlined: it needs all registers for itself.
template <class Type, class Sink>
__attribute__((noinline)) void unpack_part(Rows rows, int blocks, const uint8_t* next, Sink& sink) {
  PrefetchingSink<Type, Sink> prefetching{sink, next};
  for (int b = 0; b < blocks; b += Type::elements / kBlock) {
    Type::unpack(rows, prefetching);
    rows.first += Type::bytes;
    prefetching.sink.advance(Type::elements / kBlock);
  }
  sink = prefetching.sink;
}

// Calls `pass` with a count of 1 … most as a constant.
template <int most, class Pass>
inline void with_count(int count, Pass&& pass) {
  if constexpr (most > 1) {
    if (count < most) return with_count<most - 1>(count, pass);
  }
  pass.template operator()<most>();
}

// A group times all tokens, when these are few: multiplied as the codes are unpacked.
template <class Type>
struct DirectPass {
  const MatmulArgs& args;
  Rows rows;
  int n, count;
  template <int T>
  void operator()() {
    const size_t x_bytes = quantized_row_bytes(args.K);
    RowFloats sums[T][kGroupParts];
    const uint8_t* next = args.weights + static_cast<size_t>(n) * args.row_bytes;
    for (int part = 0; part < kGroupParts; ++part) {
      next += kUnpackRows * args.row_bytes;
      DotSink<Type, T> sink(args.xq, x_bytes);
      unpack_part<Type>(rows_of_part(rows, part), args.K / kBlock, next, sink);
      for (int t = 0; t < T; ++t) sums[t][part] = sink.sum[t];
    }
    for (int t = 0; t < T; ++t) store_outputs(args, t, n, count, joined(sums[t]));
  }
};

// Blocks [begin, end) of a group, already unpacked, times the tokens from m on.
template <class Type>
struct TilePass {
  const MatmulArgs& args;
  const Panel* panels;
  float* kept;              // sums of all tokens over the blocks before `begin`, then before `end`, unless these are all
  int begin, end, m, n, count;
  template <int T>
  void operator()() {
    const size_t x_bytes = quantized_row_bytes(args.K);
    const uint8_t* xq = args.xq + m * x_bytes + begin * sizeof(ActivationBlock);
    Floats sums[T];
    for (int t = 0; t < T; ++t) {
      sums[t] = begin == 0 ? broadcast(0) : load(kept + (m + t) * kRowGroup);
      prefetch(reinterpret_cast<const uint8_t*>(args.y + (m + t) * args.y_stride + n));
    }
    accumulate<Type, T>(panels, end - begin, xq, x_bytes, sums);
    for (int t = 0; t < T; ++t) {
      end < args.K / kBlock ? store(kept + (m + t) * kRowGroup, sums[t]) : store_outputs(args, m + t, n, count, sums[t]);
    }
  }
};

// Groups of rows times all tokens, kFewTokensGroups groups at most where panels are shorter than a row. These stay in the
// first-level cache from when they are unpacked until they are multiplied; of many tokens that is a small part of the time.
template <class Type>
void multiply_groups(const MatmulArgs& args) {
  const MatmulScratch scratch(args.scratch, args.K);
  const int blocks = args.K / kBlock, step = args.M <= kFewTokens ? kFewTokensBlocks : blocks;
  const int tiles = (args.M + kTileTokens - 1) / kTileTokens;
  const uint8_t* next = args.weights + static_cast<size_t>(args.n_end) * args.row_bytes;
  for (int begin = 0; begin < blocks; begin += step) {
    const int end = blocks - begin < step ? blocks : begin + step;
    float* kept = scratch.sums;
    for (int n = args.n_begin; n < args.n_end; n += kRowGroup, kept += kFewTokens * kRowGroup) {
      const int count = args.n_end - n < kRowGroup ? args.n_end - n : kRowGroup;
      Rows rows = rows_of_group<Type>(args, n, count, scratch.copy);
      rows.first += begin / (Type::elements / kBlock) * Type::bytes;
      for (int part = 0; part < kGroupParts; ++part) {
        PanelSink<Type> sink = panel_sink<Type>(scratch.panels, part);
        unpack_part<Type>(rows_of_part(rows, part), end - begin, next, sink);
        next += kUnpackRows * (end - begin) * kBlock / Type::elements * Type::bytes;
      }
      for (int tile = 0; tile < tiles; ++tile) {   // of almost equal size
        const int m = static_cast<int>(static_cast<int64_t>(args.M) * tile / tiles);
        const int m_end = static_cast<int>(static_cast<int64_t>(args.M) * (tile + 1) / tiles);
        with_count<kTileTokens>(m_end - m, TilePass<Type>{args, scratch.panels, kept, begin, end, m, n, count});
      }
    }
  }
}

template <class Type>
void matmul_blocks(const MatmulArgs& args) {
  if (args.M <= direct_tokens<Type>) {
    const MatmulScratch scratch(args.scratch, args.K);
    for (int n = args.n_begin; n < args.n_end; n += kRowGroup) {
      const int count = args.n_end - n < kRowGroup ? args.n_end - n : kRowGroup;
      const Rows rows = rows_of_group<Type>(args, n, count, scratch.copy);
      with_count<direct_tokens<Type>>(args.M, DirectPass<Type>{args, rows, n, count});
    }
    return;
  }
  MatmulArgs part = args;
  const int step = (args.M <= kFewTokens ? kFewTokensGroups : 1) * kRowGroup;
  for (part.n_begin = args.n_begin; part.n_begin < args.n_end; part.n_begin += step) {
    part.n_end = args.n_end - part.n_begin < step ? args.n_end : part.n_begin + step;
    multiply_groups<Type>(part);
  }
}

// Float weights: sixteen inputs of an element type as float32, and those of one register.
struct F32 {
  static constexpr int bytes = 4;
  static inline Floats load16(const uint8_t* from) { return load(reinterpret_cast<const float*>(from)); }
  static inline RowFloats load_some(const uint8_t* from) { return load_part(reinterpret_cast<const float*>(from)); }
};

struct F16 {
  static constexpr int bytes = 2;
  static inline Floats load16(const uint8_t* from) { return load_f16(from); }
  static inline RowFloats load_some(const uint8_t* from) { return load_f16_part(from); }
};

struct BF16 {
  static constexpr int bytes = 2;
  static inline Floats load16(const uint8_t* from) { return load_bf16(from); }
  static inline RowFloats load_some(const uint8_t* from) { return load_bf16_part(from); }
};

// The last inputs of a row, fewer than 16; nothing behind them is read.
template <class Element>
inline Floats load_last(const uint8_t* from, int count) {
  alignas(64) uint8_t copy[kLanes * Element::bytes] = {};
  __builtin_memcpy(copy, from, static_cast<size_t>(count) * Element::bytes);
  return Element::load16(copy);
}

constexpr int kPrefetchedBytes = 1024;   // of float weights, ahead in a row

// N rows, `apart` rows from each other, times T tokens. Rows are read side by side, each its own stream of memory. A
// RowFloats holds the lanes of one register here, of 16 kGroupParts hold all.
template <class Element, int N, int T>
inline void multiply_floats(const MatmulArgs& args, int n, int apart, int m) {
  const uint8_t* rows = args.weights + static_cast<size_t>(n) * args.row_bytes;
  const size_t stride = apart * args.row_bytes;
  const float* x = args.x + m * args.x_stride;
  RowFloats sums[N][T][kGroupParts];   // of each register's lanes
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
      for (int part = 0; part < kGroupParts; ++part) sums[i][t][part] = RowFloats{};
    }
  }
  const int whole = args.K / kLanes * kLanes, rest = args.K - whole;
  for (int k = 0; k < whole; k += kLanes) {
    const uint8_t* at = rows + static_cast<size_t>(k) * Element::bytes;
    if (m == 0) {   // later tokens find the rows in the cache
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) prefetch(at + i * stride + kPrefetchedBytes);
    }
#pragma GCC unroll 2
    for (int part = 0; part < kGroupParts; ++part) {
      RowFloats w[N];
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) w[i] = Element::load_some(at + i * stride + part * kUnpackRows * Element::bytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        RowFloats inputs = load_part(x + t * args.x_stride + k + part * kUnpackRows);
        hold(inputs);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) sums[i][t][part] = fma(w[i], inputs, sums[i][t][part]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      Floats lanes = joined(sums[i][t]);
      if (rest) {
        const Floats w = load_last<Element>(rows + i * stride + static_cast<size_t>(whole) * Element::bytes, rest);
        const Floats inputs = load_first(x + t * args.x_stride + whole, rest);
        lanes = keep_first(fma(w, inputs, lanes), rest, lanes);
      }
      const int row = n + i * apart;
      const float sum = tree_sum(lanes), biased = args.bias ? sum + args.bias[row] : sum;
      float* y = args.y + (m + t) * args.y_stride + row;
      *y = args.accumulate ? *y + biased : biased;
    }
  }
}

template <class Element, int N>
struct FloatPass {
  const MatmulArgs& args;
  int n, apart, m;
  template <int T>
  void operator()() {
    multiply_floats<Element, N, T>(args, n, apart, m);
  }
};

// Every tile of tokens goes through a whole group of rows, so that its inputs stay in the cache meanwhile.
template <class Element>
void matmul_floats(const MatmulArgs& args) {
  for (int n_group = args.n_begin; n_group < args.n_end; n_group += kRowGroup) {
    const int n_end = args.n_end - n_group < kRowGroup ? args.n_end : n_group + kRowGroup;
    const int apart = (n_end - n_group) / kFloatRows;
    for (int m = 0; m < args.M; m += kFloatTokens) {
      const int count = args.M - m < kFloatTokens ? args.M - m : kFloatTokens;
      int n = n_group;
      for (; n < n_group + apart; ++n) {
        with_count<kFloatTokens>(count, FloatPass<Element, kFloatRows>{args, n, apart, m});
      }
      for (n += (kFloatRows - 1) * apart; n < n_end; ++n) {
        with_count<kFloatTokens>(count, FloatPass<Element, 1>{args, n, 0, m});
      }
    }
  }
}

}  // namespace
}  // namespace magnitude
