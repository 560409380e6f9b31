// Attention over pages of the key/value cache in plain C++: the oracle of lanes_attention.h.
#pragma once

#include "scalar_vector.h"

namespace magnitude {
namespace {

constexpr int kChunkTokens = kChunkPages * kPageTokens;

float load_element(const uint8_t* page, size_t index, CacheType type) {
  return type == CacheType::F16 ? F16::decode(page + index * 2) : F32::decode(page + index * 4);
}

void store_element(uint8_t* page, size_t index, CacheType type, float value) {
  if (type == CacheType::F16) {
    const uint16_t half = f16_from_float(value);
    std::memcpy(page + index * 2, &half, 2);
  } else {
    std::memcpy(page + index * 4, &value, 4);
  }
}

void store_key(const float* k, int D, int slot, CacheType type, uint8_t* page) {
  for (int d = 0; d < D; ++d) store_element(page, static_cast<size_t>(d) * kPageTokens + slot, type, k[d]);
}

void store_value(const float* v, int D, int slot, CacheType type, uint8_t* page) {
  for (int d = 0; d < D; ++d) store_element(page, static_cast<size_t>(slot) * D + d, type, v[d]);
}

size_t attention_scratch_bytes(int) { return kChunkTokens * sizeof(float); }

void attention_row(const AttentionArgs& args, int r, int visible, float* e) {
  const float* q = args.q + r * args.q_stride;
  float m = -HUGE_VALF, lanes[16] = {};
  for (int p = 0; p < visible; ++p) {
    float s = 0;
    for (int d = 0; d < args.D; ++d) {
      const size_t index = static_cast<size_t>(d) * kPageTokens + p % kPageTokens;
      s = std::fmaf(q[d], load_element(args.keys[p / kPageTokens], index, args.cache_type), s);
    }
    e[p] = s * args.scale;
    m = e[p] > m ? e[p] : m;
  }
  m = m + 0.0f;
  for (int p = 0; p < visible; ++p) {
    e[p] = exponential(e[p] - m);
    lanes[p % 16] = lanes[p % 16] + e[p];
  }
  args.m[r] = m;
  args.l[r] = tree_sum(lanes);
  for (int d = 0; d < args.D; ++d) {
    float o = 0;
    for (int p = 0; p < visible; ++p) {
      const size_t index = static_cast<size_t>(p % kPageTokens) * args.D + d;
      o = std::fmaf(e[p], load_element(args.values[p / kPageTokens], index, args.cache_type), o);
    }
    args.o[static_cast<size_t>(r) * args.D + d] = o;
  }
}

void attention_chunk(const AttentionArgs& args) {
  for (int r = 0; r < args.R; ++r) {
    const int seen = args.limit[r] - args.first_position;
    const int visible = seen < 0 ? 0 : seen > kChunkTokens ? kChunkTokens : seen;
    attention_row(args, r, visible, static_cast<float*>(args.scratch));
  }
}

void attention_fold(float* m1, float* l1, float* o1, float m2, float l2, const float* o2, int D) {
  if (l2 == 0) return;   // nothing of the chunk was visible
  const float m = m2 > *m1 ? m2 : *m1, a = exponential(*m1 - m), b = exponential(m2 - m);
  *m1 = m;
  *l1 = *l1 * a + l2 * b;
  for (int d = 0; d < D; ++d) o1[d] = o1[d] * a + o2[d] * b;
}

void attention_finish(float l, float* o, int D) {
  for (int d = 0; d < D; ++d) o[d] = o[d] / l;
}

}  // namespace
}  // namespace magnitude
