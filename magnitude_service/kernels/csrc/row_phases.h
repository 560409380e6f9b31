// Phases whose rows are independent of each other: embedding, and what no matmul could take over.
#pragma once

#include "phase.h"

namespace magnitude {

// out[t] = row token[t] of the embedding, dequantised.
class EmbedPhase : public Phase {
 public:
  EmbedPhase(Weights embedding, int output) : embedding_(embedding), output_(output) {}
  void run(const StepContext& context) const override;

 private:
  Weights embedding_;
  int output_;
};

// out = x / sqrt(mean(x^2) + epsilon) * weight.
class NormPhase : public Phase {
 public:
  NormPhase(const float* weight, int width, float epsilon, int input, int output)
      : weight_(weight), width_(width), epsilon_(epsilon), input_(input), output_(output) {}
  void run(const StepContext& context) const override;

 private:
  const float* weight_;
  int width_;
  float epsilon_;
  int input_, output_;
};

// out = silu(gate) * up.
class GatedActivationPhase : public Phase {
 public:
  GatedActivationPhase(int width, int gate, int up, int output)
      : width_(width), gate_(gate), up_(up), output_(output) {}
  void run(const StepContext& context) const override;

 private:
  int width_;
  int gate_, up_, output_;
};

// out = a + b.
class AddPhase : public Phase {
 public:
  AddPhase(int width, int a, int b, int output) : width_(width), a_(a), b_(b), output_(output) {}
  void run(const StepContext& context) const override;

 private:
  int width_;
  int a_, b_, output_;
};

}  // namespace magnitude
