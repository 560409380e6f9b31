#include "rope_table.h"

#include <cmath>

namespace magnitude {

RopeTable::RopeTable(int dimensions, double base, double scale, const float* factors) {
  for (int i = 0; i < dimensions / 2; ++i) {
    const double factor = factors == nullptr ? 1 : factors[i];
    frequencies_.push_back(std::pow(base, -2.0 * i / dimensions) / scale / factor);
  }
}

void RopeTable::fill(int position, float* out) const {
  for (const double frequency : frequencies_) {
    const double angle = position * frequency;
    *out++ = static_cast<float>(std::cos(angle));
    *out++ = static_cast<float>(std::sin(angle));
  }
}

}  // namespace magnitude
