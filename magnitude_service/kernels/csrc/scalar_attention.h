// Attention over pages of the key/value cache in plain C++: the oracle of lanes_attention.h.
#pragma once

#include "scalar_vector.h"

#include "cache_store.h"   // after f16_from_float

namespace magnitude {
namespace {

constexpr int kChunkTokens = kChunkPages * kPageTokens;

// A head's page, element by element. A step is the distance of adjacent cells (or scales) of one position.
struct PageReader {
  const uint8_t* cells;
  const uint8_t* scales;
  size_t cell_step, scale_step;
  CacheType type;

  float element(int d) const {
    const uint8_t* scale = scales + d / kBlock * scale_step * 2;
    switch (type) {
      case CacheType::F32: return F32::decode(cells + d * cell_step * 4);
      case CacheType::F16: return F16::decode(cells + d * cell_step * 2);
      case CacheType::BF16: return BF16::decode(cells + d * cell_step * 2);
      case CacheType::Q8_0: return scaled(cells[d * cell_step], kCodeOffsetQ8_0, scale);
      case CacheType::Q4_0: {
        const uint8_t cell = cells[(d / kBlock * 16 + d % 16) * cell_step];
        return scaled(d % kBlock < 16 ? cell & 15 : cell >> 4, kCodeOffsetQ4_0, scale);
      }
    }
    return 0;
  }

 private:
  // Exact, but for a scale that is no number.
  static float scaled(int cell, int offset, const uint8_t* scale) {
    const float factor = float_from_f16(read_u16(scale));
    return std::fmaf(static_cast<float>(cell), factor, factor * static_cast<float>(-offset));
  }
};

PageReader reader_at(const PagePosition& at, CacheType type) {
  return {at.cells, at.scales, at.cell_step, at.scale_step, type};
}

PageReader key_at(const AttentionArgs& args, int p) {
  uint8_t* page = const_cast<uint8_t*>(args.keys[p / kPageTokens]);
  return reader_at(position_of_keys(page_shape(args.cache_type, args.D), p % kPageTokens, page), args.cache_type);
}

PageReader value_at(const AttentionArgs& args, int p) {
  uint8_t* page = const_cast<uint8_t*>(args.values[p / kPageTokens]);
  return reader_at(position_of_values(page_shape(args.cache_type, args.D), p % kPageTokens, page), args.cache_type);
}

size_t attention_scratch_bytes(int, int) { return kChunkTokens * sizeof(float); }

float capped(float score, float softcap) {
  return softcap - 2 * softcap / (1.0f + exponential(score * (2 / softcap)));
}

// One row over positions [begin, end) of the chunk.
void attention_row(const AttentionArgs& args, int r, int begin, int end, float* e) {
  const float* q = args.q + r * args.q_stride;
  float m = -HUGE_VALF, lanes[16] = {};
  for (int p = begin; p < end; ++p) {
    const PageReader key = key_at(args, p);
    float s = 0;
    for (int d = 0; d < args.D; ++d) s = std::fmaf(q[d], key.element(d), s);
    e[p] = s * args.scale;
    if (args.softcap != 0) e[p] = capped(e[p], args.softcap);
    m = e[p] > m ? e[p] : m;
  }
  m = m + 0.0f;
  for (int p = begin; p < end; ++p) {
    e[p] = exponential(e[p] - m);
    lanes[p % 16] = lanes[p % 16] + e[p];
  }
  args.m[r] = m;
  args.l[r] = tree_sum(lanes);
  for (int d = 0; d < args.D; ++d) {
    float o = 0;
    for (int p = begin; p < end; ++p) o = std::fmaf(e[p], value_at(args, p).element(d), o);
    args.o[static_cast<size_t>(r) * args.D + d] = o;
  }
}

void attention_chunk(const AttentionArgs& args) {
  for (int r = 0; r < args.R; ++r) {
    const Visible seen = visible_of_row(args, r);
    attention_row(args, r, seen.begin, seen.end, static_cast<float*>(args.scratch));
  }
}

void fold_row(float* m1, float* l1, float* o1, float m2, float l2, const float* o2, int D) {
  if (l2 == 0) return;   // nothing of the chunk was visible
  if (*l1 == 0) {        // nothing was visible before
    *m1 = m2;
    *l1 = l2;
    std::memcpy(o1, o2, static_cast<size_t>(D) * sizeof(float));
    return;
  }
  const float m = m2 > *m1 ? m2 : *m1, a = exponential(*m1 - m), b = exponential(m2 - m);
  *m1 = m;
  *l1 = *l1 * a + l2 * b;
  for (int d = 0; d < D; ++d) o1[d] = o1[d] * a + o2[d] * b;
}

void attention_fold(float* m1, float* l1, float* o1, const float* m2, const float* l2, const float* o2, int R, int D) {
  for (int r = 0; r < R; ++r) {
    const size_t row = static_cast<size_t>(r) * D;
    fold_row(m1 + r, l1 + r, o1 + row, m2[r], l2[r], o2 + row, D);
  }
}

void attention_finish(const float* m, const float* l, float* o, const float* sinks, int R, int D) {
  for (int r = 0; r < R; ++r, o += D) {
    float a = 1, total = l[r];
    if (sinks != nullptr) {
      const float largest = sinks[r] > m[r] ? sinks[r] : m[r];
      a = exponential(m[r] - largest);
      total = l[r] * a + exponential(sinks[r] - largest);
    }
    for (int d = 0; d < D; ++d) o[d] = o[d] * a / total;
  }
}

}  // namespace
}  // namespace magnitude
