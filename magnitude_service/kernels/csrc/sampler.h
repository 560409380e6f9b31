// Chooses one token of a row of logits. engine/sampling.py is the same in NumPy, and the oracle of the tests.
//
// Order and meaning follow llama.cpp's defaults:
//   1  a NaN, a +inf or no finite logit: kNotFinite. Log-probabilities are taken here, from the unmodified logits
//   2  logit biases are added; a masked id, or one that ends at -inf, is no candidate
//   3  penalties, per distinct id of the window: repetition divides a positive logit and multiplies another;
//      then count * frequency + presence is subtracted
//   4  temperature 0: the largest logit, the lowest id among equals. Done
//   5  top_k: the k largest          6  typical_p          7  top_p          8  min_p      each keeps at least one
//   9  p = softmax(logit / temperature); the draw
// In 6, 7 and 9 probabilities are those among the candidates that are left, in float64; "largest" means the larger
// logit, then the lower id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops.h"

namespace magnitude {

constexpr uint32_t kTopLogprobsMax = 32;   // TOP_LOGPROBS_MAX in engine/batch.py
constexpr uint32_t kRowScore = 1;          // RowFlag in engine/batch.py
constexpr uint32_t kRowMasked = 2;

enum class RowStatus : uint8_t { kOk = 0, kNotFinite = 1, kNoCandidate = 2 };

// SAMPLER_ROW in engine/batch.py, where each field is explained; a test compares the offsets.
struct SamplerRow {
  uint64_t seed;
  uint64_t draw;
  float temperature;
  float top_p;
  float min_p;
  float typical_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  uint32_t top_k;
  uint32_t top_logprobs;
  uint32_t target;
  uint32_t flags;
  uint32_t window_begin;
  uint32_t window_end;
  uint32_t bias_begin;
  uint32_t bias_end;
  uint32_t mask;
};

// What the rows of a step point into. Ids lie within the vocabulary, slices and masks within their arrays.
struct SamplerLists {
  const int32_t* window;
  int window_count;
  const int32_t* bias_ids;
  const float* bias_values;
  int bias_count;
  const uint32_t* masks;       // [mask_count][mask_words]; bit i % 32 of word i / 32: id i may be chosen
  int mask_count;
  int mask_words;
};

// One row's answer. Unless status is kOk, token is 0 and the log-probabilities are undefined.
struct SamplerChoice {
  int32_t* token;
  float* logprob;
  uint8_t* status;
  int32_t* top_ids;            // [SamplerRow::top_logprobs], likeliest first
  float* top_logprobs;
};

// The row's random number in [0, 1): a hash of (seed, draw), so that the pair is all the state there is.
//   mix(z): z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
//   u = (mix(mix(seed + g) + (draw + 1) * g) >> 11) * 2^-53,   g = 0x9E3779B97F4A7C15
// Source: the output function and increment of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014), here as a counter-based generator: seed selects the stream, draw the place in it.
double uniform_draw(uint64_t seed, uint64_t draw);

// One thread's sampler: scratch for one row of V logits.
class Sampler {
 public:
  explicit Sampler(int vocabulary);

  void choose(const Ops& ops, const float* logits, const SamplerRow& row, const SamplerLists& lists,
              const SamplerChoice& choice);
  size_t bytes() const;

 private:
  struct Candidate {
    int32_t id;
    float logit;
    double value;              // a probability, or what the current filter orders by
  };

  static bool larger(const Candidate& a, const Candidate& b);
  void score(const float* logits, const SamplerRow& row, float log_total, const SamplerChoice& choice);
  const float* adjust(const float* logits, const SamplerRow& row, const SamplerLists& lists);
  void penalise(const SamplerRow& row, const SamplerLists& lists);
  void select_largest(const float* logits, int count);
  void collect_all(const float* logits);
  void filter(const SamplerRow& row);
  double set_probabilities(double temperature);
  void keep_typical(double mass);
  void keep_top(double mass);
  void keep_above(double ratio);
  template <class Before>
  void keep_mass(double mass, bool beyond, Before before);
  int32_t draw(const SamplerRow& row);

  int vocabulary_;
  std::vector<float> adjusted_;
  std::vector<int32_t> window_;
  std::vector<Candidate> candidates_;
};

}  // namespace magnitude
