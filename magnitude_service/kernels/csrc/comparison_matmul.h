// Comparisons of matrix products and of dequantised rows, per tensor type.
#pragma once

#include "blocks.h"
#include "comparison_inputs.h"

namespace magnitude {
namespace {

// Offsets of the f16 numbers of a block; 0xffff for none.
struct HalvesOfBlock {
  uint16_t first, second;
};

constexpr HalvesOfBlock halves_of_block(TensorType type) {
  switch (type) {
    case TensorType::Q4_1:
    case TensorType::Q5_1:
    case TensorType::Q4_K:
    case TensorType::Q5_K: return {0, 2};
    case TensorType::Q6_K: return {208, 0xffff};
    default: return {0, 0xffff};
  }
}

// A block of random bytes is valid once its f16 numbers are numbers.
void draw_block(Draw& draw, TensorType type, int bytes, uint8_t* block) {
  if (type == TensorType::F32 || type == TensorType::BF16) {
    const float value = draw.value();
    std::memcpy(block, reinterpret_cast<const uint8_t*>(&value) + 4 - bytes, bytes);
    return;
  }
  for (int i = 0; i < bytes; ++i) block[i] = static_cast<uint8_t>(draw.word());
  const HalvesOfBlock halves = halves_of_block(type);
  for (const uint16_t offset : {halves.first, halves.second}) {
    if (offset == 0xffff) continue;
    const uint16_t half = draw.half();
    std::memcpy(block + offset, &half, sizeof half);
  }
}

uint8_t* draw_weights(Comparison& c, TensorType type, int rows, int K) {
  const BlockShape shape = block_shape(type);
  const int blocks = rows * (K / shape.elements);
  uint8_t* weights = c.memory.array(kWeights, static_cast<size_t>(blocks) * shape.bytes, 1);
  for (int b = 0; b < blocks; ++b) draw_block(c.draw, type, shape.bytes, weights + static_cast<size_t>(b) * shape.bytes);
  return weights;
}

// Rows of activations of which some hold an outlier, a block of zeros, numbers too small for a scale, a NaN, an infinity.
float* draw_inputs(Comparison& c, int M, int K) {
  float* x = c.drawn(kInputs, static_cast<size_t>(M) * K);
  for (int m = 0; m < M; ++m) {
    float* row = x + static_cast<size_t>(m) * K;
    const int length = K < kBlock ? K : kBlock;
    row[K / 3] *= 40.0f;
    if (m % 8 == 1) std::memset(row, 0, length * sizeof(float));
    if (m % 8 == 2) row[0] = HUGE_VALF;
    for (int k = 0; m % 8 == 4 && k < length; ++k) row[k] = 0x1p-140f;
    if (m % 8 == 5) row[K / 2] = std::nanf("");
  }
  return x;
}

struct MatmulShape {
  int M, N, K, n_begin;
  bool biased, accumulated;
};

MatmulArgs matmul_args(Comparison& c, const MatmulShape& shape, TensorType type) {
  MatmulArgs args{};
  const BlockShape block = block_shape(type);
  args.weights = draw_weights(c, type, shape.N, shape.K);
  args.row_bytes = static_cast<size_t>(shape.K / block.elements) * block.bytes;
  args.K = shape.K;
  args.n_begin = shape.n_begin;
  args.n_end = shape.N;
  args.M = shape.M;
  args.x = draw_inputs(c, shape.M, shape.K);
  args.x_stride = static_cast<size_t>(shape.K);
  args.y_stride = static_cast<size_t>(shape.N);
  args.bias = shape.biased ? c.drawn(kVectors, shape.N) : nullptr;
  args.accumulate = shape.accumulated;
  return args;
}

bool matmul_agrees(Comparison& c, TensorType type, const MatmulShape& shape) {
  const int index = static_cast<int>(type);
  MatmulArgs args = matmul_args(c, shape, type);
  const size_t outputs = static_cast<size_t>(shape.M) * shape.N;
  const auto multiply = [&](const Ops& ops, Array quantized, Array scratch, float* y) {
    if (block_shape(type).elements > 1) {
      uint8_t* xq = c.aligned(quantized, ops.quantized_row_bytes(shape.K) * shape.M);
      ops.quantize(args.x, args.x_stride, shape.M, shape.K, xq);
      args.xq = xq;
    }
    args.scratch = c.aligned(scratch, ops.matmul_scratch_bytes(shape.K));
    args.y = y;
    ops.matmul[index](args);
  };
  float* y = c.drawn(kOutputs, outputs);
  float* expected = c.floats(kOracleOutputs, outputs);
  std::memcpy(expected, y, outputs * sizeof(float));   // what accumulates, and columns that are not to be touched
  multiply(c.table, kQuantized, kScratch, y);
  multiply(c.oracle, kOracleQuantized, kOracleScratch, expected);
  return same_bits(y, expected, outputs);
}

template <TensorType type>
bool matmul_holds(Comparison& c) {
  constexpr int elements = block_shape(type).elements;
  constexpr int whole = elements > 1 ? elements : 40;   // of floats: two vectors and a rest
  const int K = elements == kBlock ? 3 * kBlock : whole;
  if (!c.table.matmul[static_cast<int>(type)]) return false;
  if (!c.thorough) {
    return matmul_agrees(c, type, {1, 19, K, 0, false, false}) && matmul_agrees(c, type, {3, 17, K, 0, true, false}) &&
           matmul_agrees(c, type, {24, 16, K, 0, false, true});
  }
  bool holds = true;
  for (int M : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 40}) {
    for (int N : {1, 15, 16, 17, 33}) {
      for (int blocks : {1, 2, 7}) {
        const int columns = elements > 1 ? elements * blocks : blocks * blocks * 5 / 3;   // 1, 6, 81
        const MatmulShape shape{M, N, columns, N > 16 && M % 2 ? 16 : 0, M % 3 == 1, blocks == 2};
        holds = holds && matmul_agrees(c, type, shape);
      }
    }
  }
  return holds;
}

template <TensorType type>
bool dequantize_holds(Comparison& c) {
  constexpr int elements = block_shape(type).elements;
  if (!c.table.dequantize_row[static_cast<int>(type)]) return false;
  const int K = 3 * elements, rows = c.thorough ? 50 : 2;
  const uint8_t* weights = draw_weights(c, type, rows, K);
  float *y = c.floats(kOutputs, K), *expected = c.floats(kOracleOutputs, K);
  for (int row = 0; row < rows; ++row) {
    const uint8_t* from = weights + static_cast<size_t>(row) * 3 * block_shape(type).bytes;
    c.table.dequantize_row[static_cast<int>(type)](from, K, y);
    c.oracle.dequantize_row[static_cast<int>(type)](from, K, expected);
    if (!same_bits(y, expected, K)) return false;
  }
  return true;
}

}  // namespace
}  // namespace magnitude
