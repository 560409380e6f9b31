// What the comparisons of two tables share: drawn inputs, where they lie, and what counts as equal.
#pragma once

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "table_comparison.h"

namespace magnitude {
namespace {

// SplitMix64: the same inputs in every run.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  int below(int bound) { return static_cast<int>(word() % static_cast<uint64_t>(bound)); }
  // Of either sign, magnitudes a few powers of two apart.
  float value() {
    const uint64_t bits = word();
    const float unit = static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
    return std::ldexp(unit, static_cast<int>(bits & 7) - 5);
  }
  // A scale of a block: mostly ordinary, at times subnormal or zero, of either sign.
  uint16_t half() {
    const uint64_t bits = word();
    const uint16_t sign = static_cast<uint16_t>(bits & 0x8000), mantissa = static_cast<uint16_t>(bits >> 16 & 0x3ff);
    const int kind = static_cast<int>(bits >> 32 & 31), exponent = static_cast<int>(bits >> 40 & 7) + 4;
    if (kind == 0) return sign;
    if (kind < 3) return sign | mantissa;
    return static_cast<uint16_t>(sign | exponent << 10 | mantissa);
  }

 private:
  uint64_t state_;
};

// The arrays of a comparison, by their numbers in ComparisonMemory.
enum Array {
  kWeights, kInputs, kInputs2, kVectors, kQuantized, kOracleQuantized, kOutputs, kOracleOutputs, kScratch,
  kOracleScratch, kKeys, kValues, kStatistics, kOracleStatistics, kLimits,
};
static_assert(kLimits < ComparisonMemory::kArrays, "too many arrays");

// Both tables, and what a comparison draws its inputs from and puts them into.
struct Comparison {
  const Ops& table;
  const Ops& oracle;
  const bool thorough;
  ComparisonMemory& memory;
  Draw draw;

  float* floats(Array number, size_t count) {
    return reinterpret_cast<float*>(memory.array(number, count * sizeof(float), sizeof(float)));
  }
  float* drawn(Array number, size_t count) {
    float* values = floats(number, count);
    for (size_t i = 0; i < count; ++i) values[i] = draw.value();
    return values;
  }
  uint8_t* aligned(Array number, size_t bytes) { return memory.array(number, bytes, 64); }
};

bool same_bits(const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0 && !(a[i] != a[i] && b[i] != b[i])) return false;
  }
  return true;
}

}  // namespace
}  // namespace magnitude
