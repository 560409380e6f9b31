#include "sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace magnitude {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();
constexpr int kScanBlock = 64;           // logits that are looked at as one when the largest are sought
constexpr size_t kFirstMassBlock = 64;   // candidates that are put in order first when a share of the mass is kept

constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15;

uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

// Biases and penalties may overflow; a candidate's logit stays finite or is removed.
float bounded(float logit) {
  if (std::isnan(logit)) return kRemoved;
  return std::min(logit, FLT_MAX);
}

float largest_of(const float* x, int count) {
  float largest = x[0];
  for (int i = 1; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

}  // namespace

double uniform_draw(uint64_t seed, uint64_t draw) {
  const uint64_t bits = mix(mix(seed + kIncrement) + (draw + 1) * kIncrement);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampler::Sampler(int vocabulary) : vocabulary_(vocabulary), adjusted_(vocabulary) { candidates_.reserve(vocabulary); }

size_t Sampler::bytes() const {
  return adjusted_.capacity() * sizeof(float) + candidates_.capacity() * sizeof(Candidate);
}

bool Sampler::larger(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

void Sampler::choose(const Ops& ops, const float* logits, const SamplerRow& row, const SamplerLists& lists,
                     const SamplerChoice& choice) {
  float max, sum;
  *choice.token = 0;
  *choice.logprob = kRemoved;
  *choice.status = static_cast<uint8_t>(RowStatus::kNotFinite);
  if (!ops.softmax_statistics(logits, vocabulary_, &max, &sum)) return;
  *choice.status = static_cast<uint8_t>(RowStatus::kOk);
  const float log_total = max + std::log(sum);
  score(logits, row, log_total, choice);
  if ((row.flags & kRowScore) != 0) {
    *choice.token = static_cast<int32_t>(row.target);
    *choice.logprob = logits[row.target] - log_total;
    return;
  }
  const float* adjusted = adjust(logits, row, lists);
  const bool greedy = row.temperature <= 0;
  if (greedy || (row.top_k > 0 && row.top_k < static_cast<uint32_t>(vocabulary_))) {
    select_largest(adjusted, greedy ? 1 : static_cast<int>(row.top_k));
  } else {
    collect_all(adjusted);
  }
  if (candidates_.empty()) {
    *choice.status = static_cast<uint8_t>(RowStatus::kNoCandidate);
    return;
  }
  if (!greedy) filter(row);
  *choice.token = greedy ? candidates_.front().id : draw(row);
  *choice.logprob = logits[*choice.token] - log_total;
}

// The likeliest ids and their log-probabilities. Ids beyond the finite logits have log-probability -inf.
void Sampler::score(const float* logits, const SamplerRow& row, float log_total, const SamplerChoice& choice) {
  const int wanted = std::min(static_cast<int>(row.top_logprobs), vocabulary_);
  if (wanted == 0) return;
  select_largest(logits, wanted);
  for (int i = 0; i < static_cast<int>(row.top_logprobs); ++i) {
    const bool found = i < static_cast<int>(candidates_.size());
    choice.top_ids[i] = found ? candidates_[i].id : 0;
    choice.top_logprobs[i] = found ? candidates_[i].logit - log_total : kRemoved;
  }
}

// Biases, mask and penalties, on a copy; the row itself where there are none.
const float* Sampler::adjust(const float* logits, const SamplerRow& row, const SamplerLists& lists) {
  const bool masked = (row.flags & kRowMasked) != 0;
  const bool penalised = row.window_begin < row.window_end &&
                         (row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0);
  if (!masked && !penalised && row.bias_begin == row.bias_end) return logits;
  std::copy(logits, logits + vocabulary_, adjusted_.begin());
  for (uint32_t i = row.bias_begin; i < row.bias_end; ++i) {
    float& logit = adjusted_[lists.bias_ids[i]];
    logit = bounded(logit + lists.bias_values[i]);
  }
  if (masked) {
    const uint32_t* mask = lists.masks + static_cast<size_t>(row.mask) * lists.mask_words;
    for (int id = 0; id < vocabulary_; ++id) {
      if ((mask[id >> 5] >> (id & 31) & 1) == 0) adjusted_[id] = kRemoved;
    }
  }
  if (penalised) penalise(row, lists);
  return adjusted_.data();
}

void Sampler::penalise(const SamplerRow& row, const SamplerLists& lists) {
  window_.assign(lists.window + row.window_begin, lists.window + row.window_end);
  std::sort(window_.begin(), window_.end());
  for (size_t begin = 0, end = 0; begin < window_.size(); begin = end) {
    while (end < window_.size() && window_[end] == window_[begin]) ++end;
    float& logit = adjusted_[window_[begin]];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    logit = bounded(logit - (static_cast<float>(end - begin) * row.frequency_penalty + row.presence_penalty));
  }
}

// The `count` largest logits into candidates_, in order. A block is skipped by one comparison, unless something in it
// beats the least of those found so far: the ids ascend, so that an equal logit never does.
void Sampler::select_largest(const float* logits, int count) {
  candidates_.clear();
  float least = kRemoved;
  for (int begin = 0; begin < vocabulary_; begin += kScanBlock) {
    const int size = std::min(kScanBlock, vocabulary_ - begin);
    if (largest_of(logits + begin, size) <= least) continue;
    for (int id = begin; id < begin + size; ++id) {
      if (logits[id] <= least) continue;
      if (static_cast<int>(candidates_.size()) == count) {
        std::pop_heap(candidates_.begin(), candidates_.end(), larger);
        candidates_.pop_back();
      }
      candidates_.push_back({id, logits[id], 0});
      std::push_heap(candidates_.begin(), candidates_.end(), larger);
      if (static_cast<int>(candidates_.size()) == count) least = candidates_.front().logit;
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), larger);
}

void Sampler::collect_all(const float* logits) {
  candidates_.clear();
  for (int id = 0; id < vocabulary_; ++id) {
    if (logits[id] != kRemoved) candidates_.push_back({id, logits[id], 0});
  }
}

void Sampler::filter(const SamplerRow& row) {
  if (row.typical_p < 1) keep_typical(row.typical_p);
  if (row.top_p < 1) keep_top(row.top_p);
  if (row.min_p > 0) keep_above(row.min_p);
}

// Sets each candidate's value to its probability under softmax(logit / temperature), not divided by their sum, which
// is returned.
double Sampler::set_probabilities(double temperature) {
  const double max = std::min_element(candidates_.begin(), candidates_.end(), larger)->logit;
  double total = 0;
  for (Candidate& candidate : candidates_) {
    candidate.value = std::exp((candidate.logit - max) / temperature);
    total += candidate.value;
  }
  return total;
}

// Keeps the candidates that come first by `before`, until their values sum to the mass (beyond: to more than it).
// Only as many as are kept, within a factor of two, are ever sorted.
template <class Before>
void Sampler::keep_mass(double mass, bool beyond, Before before) {
  const auto begin = candidates_.begin();
  double sum = 0;
  size_t kept = 0;
  for (size_t block = kFirstMassBlock; kept < candidates_.size(); block *= 2) {
    const size_t end = std::min(kept + block, candidates_.size());
    if (end < candidates_.size()) std::nth_element(begin + kept, begin + end, candidates_.end(), before);
    std::sort(begin + kept, begin + end, before);
    for (; kept < end; ++kept) {
      sum += candidates_[kept].value;
      if (beyond ? sum > mass : sum >= mass) {
        candidates_.resize(kept + 1);
        return;
      }
    }
  }
}

// Those whose surprise -log p is nearest to the entropy, until they hold more than `mass`.
void Sampler::keep_typical(double mass) {
  const double total = set_probabilities(1);
  double entropy = 0;
  for (const Candidate& candidate : candidates_) {
    const double p = candidate.value / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  const double max = std::min_element(candidates_.begin(), candidates_.end(), larger)->logit;
  const double offset = max + std::log(total) - entropy;
  const auto distance = [offset](const Candidate& c) { return std::fabs(offset - c.logit); };
  keep_mass(mass * total, true, [&distance](const Candidate& a, const Candidate& b) {
    const double distance_a = distance(a), distance_b = distance(b);
    return distance_a < distance_b || (distance_a == distance_b && larger(a, b));
  });
}

// The largest, until they hold `mass`. Those of less than an even share of what is left over cannot matter: together
// they are less than it, so that the others reach `mass` without them (half of that share, to be safe from rounding).
void Sampler::keep_top(double mass) {
  const double total = set_probabilities(1);
  const double least = (1 - mass) * total / (2.0 * candidates_.size());
  const auto negligible = [least](const Candidate& c) { return c.value < least; };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), negligible), candidates_.end());
  keep_mass(mass * total, false, larger);
}

// Those that are at least `ratio` times as likely as the likeliest.
void Sampler::keep_above(double ratio) {
  const double max = std::min_element(candidates_.begin(), candidates_.end(), larger)->logit;
  const double least = max + std::log(ratio);
  const auto below = [least, max](const Candidate& c) { return c.logit < least && c.logit < max; };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), below), candidates_.end());
}

// Walks the candidates in order of id until their probabilities exceed u times the total.
int32_t Sampler::draw(const SamplerRow& row) {
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id)) {
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  const double target = set_probabilities(row.temperature) * uniform_draw(row.seed, row.draw);
  double sum = 0;
  int32_t last = candidates_.front().id;
  for (const Candidate& candidate : candidates_) {
    sum += candidate.value;
    if (sum > target) return candidate.id;
    if (candidate.value > 0) last = candidate.id;
  }
  return last;   // u * total was rounded up to the total
}

}  // namespace magnitude
