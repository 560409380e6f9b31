// Comparisons of attention and of the pages it reads, per element of the cache.
#pragma once

#include "cache_pages.h"
#include "comparison_inputs.h"

namespace magnitude {
namespace {

// `positions` drawn rows of D, slot by slot, into pages of both tables: those of the table, or null where they differ.
template <CacheType type>
const uint8_t* stored_pages(Comparison& c, bool keys, int positions, int D) {
  const size_t page_bytes = page_shape(type, D).bytes();
  const int pages = (positions + kPageTokens - 1) / kPageTokens;
  uint8_t* stored = c.aligned(keys ? kKeys : kValues, pages * page_bytes);
  uint8_t* expected = c.aligned(kOracleOutputs, pages * page_bytes);
  std::memset(stored, 0xff, pages * page_bytes);   // a NaN in every slot that is not written
  std::memset(expected, 0xff, pages * page_bytes);
  for (int p = 0; p < positions; ++p) {
    float* row = c.drawn(kInputs, D);
    if (p % 7 == 3) row[D / 2] *= 1e6f;    // beyond f16
    if (p % 7 == 5) row[D - 1] *= 1e-6f;   // subnormal there
    const auto store = [&](const Ops& ops, uint8_t* to) {
      (keys ? ops.store_key : ops.store_value)(row, D, p % kPageTokens, type, to + p / kPageTokens * page_bytes);
    };
    store(c.table, stored);
    store(c.oracle, expected);
  }
  return std::memcmp(stored, expected, pages * page_bytes) == 0 ? stored : nullptr;
}

template <CacheType type, bool keys>
bool store_holds(Comparison& c) {
  if (!c.thorough) return stored_pages<type>(c, keys, 35, 24) != nullptr;
  for (int D : {1, 8, 16, 40, 64, 80, 128}) {
    if (!stored_pages<type>(c, keys, 70, D)) return false;
  }
  return true;
}

struct AttentionShape {
  int R, D, positions, first_position;
  int32_t window;
  float softcap;
};

// Of `positions` positions of the chunk, row r sees r % 3 fewer, and every fifth row none; of those the last `window`.
int32_t* draw_limits(Comparison& c, const AttentionShape& shape) {
  uint8_t* bytes = c.memory.array(kLimits, shape.R * sizeof(int32_t), sizeof(int32_t));
  int32_t* limit = reinterpret_cast<int32_t*>(bytes);
  for (int r = 0; r < shape.R; ++r) {
    const int seen = r % 5 == 3 ? 0 : shape.positions - r % 3;
    limit[r] = shape.first_position + (seen < 0 ? 0 : seen);
  }
  return limit;
}

template <CacheType type>
bool attention_agrees(Comparison& c, const AttentionShape& shape) {
  const int R = shape.R, D = shape.D;
  const uint8_t* key_pages = stored_pages<type>(c, true, shape.positions, D);
  const uint8_t* value_pages = stored_pages<type>(c, false, shape.positions, D);
  if (!key_pages || !value_pages) return false;
  const size_t page_bytes = page_shape(type, D).bytes(), outputs = static_cast<size_t>(R) * D;
  const uint8_t *keys[kChunkPages] = {}, *values[kChunkPages] = {};
  for (int page = 0; page * kPageTokens < shape.positions; ++page) {
    keys[page] = key_pages + page * page_bytes;
    values[page] = value_pages + page * page_bytes;
  }
  AttentionArgs args{};
  args.q = c.drawn(kInputs, outputs);
  args.q_stride = D;
  args.R = R;
  args.D = D;
  args.limit = draw_limits(c, shape);
  args.window = shape.window;
  args.first_position = shape.first_position;
  args.keys = keys;
  args.values = values;
  args.cache_type = type;
  args.scale = 0.125f;
  args.softcap = shape.softcap;
  const auto attend = [&](const Ops& ops, float* statistics, float* o, Array scratch) {
    args.m = statistics;
    args.l = statistics + R;
    args.o = o;
    args.scratch = c.aligned(scratch, ops.attention_scratch_bytes(R, D));
    ops.attention_chunk(args);
  };
  float *statistics = c.floats(kStatistics, 2 * R), *expected_statistics = c.floats(kOracleStatistics, 2 * R);
  float *o = c.floats(kOutputs, outputs), *expected = c.floats(kOracleOutputs, outputs);
  attend(c.table, statistics, o, kScratch);
  attend(c.oracle, expected_statistics, expected, kOracleScratch);
  return same_bits(statistics, expected_statistics, 2 * R) && same_bits(o, expected, outputs);
}

template <CacheType type>
bool attention_chunk_holds(Comparison& c) {
  if (!c.thorough) {
    return attention_agrees<type>(c, {5, 72, 37, 0, INT32_MAX, 0}) && attention_agrees<type>(c, {13, 24, 20, 0, 9, 5});
  }
  for (int R : {1, 2, 3, 5, 6, 8, 9, 17}) {
    for (int D : {1, 16, 40, 64, 72, 128}) {
      for (int positions : {1, 17, 32, 33, 200, 256}) {
        const int32_t window = D == 40 ? 20 : D == 64 ? 150 : INT32_MAX;
        if (!attention_agrees<type>(c, {R, D, positions, R % 2 * 512, window, D == 16 ? 30.0f : 0.0f})) return false;
      }
    }
  }
  return true;
}

constexpr int kFoldRows = 21;

// Chunks of rows of which some see nothing, at first or later.
bool fold_agrees(Comparison& c, int D) {
  const size_t outputs = static_cast<size_t>(kFoldRows) * D;
  float *state = c.drawn(kStatistics, 2 * kFoldRows), *o = c.drawn(kOutputs, outputs);
  float *expected_state = c.floats(kOracleStatistics, 2 * kFoldRows), *expected = c.floats(kOracleOutputs, outputs);
  for (int r = 0; r < kFoldRows; ++r) state[kFoldRows + r] = 0;   // begins so
  std::memcpy(expected_state, state, 2 * kFoldRows * sizeof(float));
  std::memcpy(expected, o, outputs * sizeof(float));
  for (int chunk = 0; chunk < 4; ++chunk) {
    float *m = c.drawn(kInputs, 2 * kFoldRows), *l = m + kFoldRows;
    const float* o2 = c.drawn(kInputs2, outputs);
    for (int r = 0; r < kFoldRows; ++r) {
      const bool seen = (r + chunk) % 5 != 0;
      m[r] = seen ? m[r] * 30.0f : -HUGE_VALF;
      l[r] = seen ? 1.0f + std::fabs(l[r]) : 0.0f;
    }
    c.table.attention_fold(state, state + kFoldRows, o, m, l, o2, kFoldRows, D);
    c.oracle.attention_fold(expected_state, expected_state + kFoldRows, expected, m, l, o2, kFoldRows, D);
  }
  return same_bits(state, expected_state, 2 * kFoldRows) && same_bits(o, expected, outputs);
}

bool attention_fold_holds(Comparison& c) { return fold_agrees(c, 1) && fold_agrees(c, 40) && fold_agrees(c, 128); }

bool attention_finish_holds(Comparison& c) {
  constexpr int R = 3;
  for (int D : {1, 40, 128}) {
    for (const bool sinking : {false, true}) {
      float *o = c.drawn(kOutputs, R * D), *expected = c.floats(kOracleOutputs, R * D);
      float* m = c.drawn(kInputs, 3 * R);
      const float *l = m + R, *sinks = sinking ? m + 2 * R : nullptr;
      std::memcpy(expected, o, R * D * sizeof(float));
      c.table.attention_finish(m, l, o, sinks, R, D);
      c.oracle.attention_finish(m, l, expected, sinks, R, D);
      if (!same_bits(o, expected, R * D)) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace magnitude
