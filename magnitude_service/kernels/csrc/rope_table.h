// Angles of rotary position embeddings: cos and sin per row of a step, computed in double precision.
#pragma once

#include <vector>

namespace magnitude {

class RopeTable {
 public:
  // angle_i(position) = position / scale * base^(-2i / dimensions) / factors[i]; factors [dimensions/2] may be null.
  RopeTable(int dimensions, double base, double scale, const float* factors);

  int angles() const { return static_cast<int>(frequencies_.size()); }

  // out[2i], out[2i + 1] = cos, sin of angle_i(position).
  void fill(int position, float* out) const;

  bool operator==(const RopeTable& other) const { return frequencies_ == other.frequencies_; }

 private:
  std::vector<double> frequencies_;
};

}  // namespace magnitude
