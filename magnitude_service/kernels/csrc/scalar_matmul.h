// Matrix products in plain C++: the oracle of the vector paths.
#pragma once

#include <cmath>

#include "scalar_blocks.h"

namespace magnitude {
namespace {

// The tree that adds 16 lanes: l with l+8, then l+4, l+2, l+1.
float tree_sum(float* lanes) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] = lanes[l] + lanes[l + width];
  }
  return lanes[0];
}

// A row of quantised activations: q i16 [K] | scale f32 [K/32] | scaled_sum f32 [K/32], which is float(sum q) * scale.
struct QuantizedRow {
  const int16_t* q;
  const float* scale;
  const float* scaled_sum;

  QuantizedRow(const uint8_t* bytes, int K)
      : q(reinterpret_cast<const int16_t*>(bytes)),
        scale(reinterpret_cast<const float*>(bytes + static_cast<size_t>(K) * 2)),
        scaled_sum(scale + K / kBlock) {}
};

size_t quantized_row_bytes(int K) {
  const size_t bytes = static_cast<size_t>(K) * 2 + static_cast<size_t>(K / kBlock) * 8;
  return (bytes + 63) / 64 * 64;
}

void quantize_block(const float* x, int16_t* q, float* scale, float* scaled_sum) {
  uint32_t largest = 0;   // magnitudes compare as integers, so that a NaN cannot hide
  for (int j = 0; j < kBlock; ++j) {
    const uint32_t magnitude = bits_from_float(x[j]) & 0x7fffffff;
    if (magnitude > largest) largest = magnitude;
  }
  const float amax = float_from_bits(largest), inverse = kActivationMax / amax;
  const bool finite = largest < 0x7f800000, visible = finite && inverse < HUGE_VALF;
  int sum = 0;
  for (int j = 0; j < kBlock; ++j) {
    q[j] = visible ? static_cast<int16_t>(std::lrintf(x[j] * inverse)) : 0;
    sum += q[j];
  }
  *scale = finite ? amax / kActivationMax : float_from_bits(0x7fc00000);
  *scaled_sum = static_cast<float>(sum) * *scale;
}

void quantize(const float* x, size_t x_stride, int M, int K, uint8_t* xq) {
  const size_t row_bytes = quantized_row_bytes(K);
  for (int m = 0; m < M; ++m) {
    const QuantizedRow row(xq + m * row_bytes, K);
    for (int b = 0; b < K / kBlock; ++b) {
      quantize_block(x + m * x_stride + b * kBlock, const_cast<int16_t*>(row.q) + b * kBlock,
                     const_cast<float*>(row.scale) + b, const_cast<float*>(row.scaled_sum) + b);
    }
  }
}

size_t matmul_scratch_bytes(int K) { return static_cast<size_t>(K / kBlock + 1) * sizeof(Block); }

void store_output(const MatmulArgs& args, int m, int n, float sum) {
  const float biased = args.bias ? sum + args.bias[n] : sum;
  float* y = args.y + m * args.y_stride + n;
  *y = args.accumulate ? *y + biased : biased;
}

template <class Type>
float dot_blocks(const Block* blocks, const QuantizedRow& x, int K) {
  float sum = 0;
  for (int b = 0; b < K / kBlock; ++b) {
    const Block& block = blocks[b];
    const int16_t* q = x.q + b * kBlock;
    int low = 0, high = 0;
    for (int j = 0; j < 16; ++j) low += block.code[j] * q[j], high += block.code[j + 16] * q[j + 16];
    if (Type::has_halves) {
      sum = std::fmaf(static_cast<float>(low), block.scale[0] * x.scale[b], sum);
      sum = std::fmaf(static_cast<float>(high), block.scale[1] * x.scale[b], sum);
    } else {
      sum = std::fmaf(static_cast<float>(low + high), block.scale[0] * x.scale[b], sum);
    }
    if (Type::has_minimum) sum = std::fmaf(block.minimum, x.scaled_sum[b], sum);
  }
  return sum;
}

template <class Type>
void matmul_blocks(const MatmulArgs& args) {
  Block* blocks = static_cast<Block*>(args.scratch);
  const size_t x_bytes = quantized_row_bytes(args.K);
  for (int n = args.n_begin; n < args.n_end; ++n) {
    for (int b = 0; b < args.K / kBlock; ++b) Type::decode(args.weights + n * args.row_bytes, b, &blocks[b]);
    for (int m = 0; m < args.M; ++m) {
      store_output(args, m, n, dot_blocks<Type>(blocks, QuantizedRow(args.xq + m * x_bytes, args.K), args.K));
    }
  }
}

template <class Type>
void matmul_floats(const MatmulArgs& args) {
  for (int n = args.n_begin; n < args.n_end; ++n) {
    const uint8_t* row = args.weights + n * args.row_bytes;
    for (int m = 0; m < args.M; ++m) {
      const float* x = args.x + m * args.x_stride;
      float lanes[16] = {};
      for (int k = 0; k < args.K; ++k) {
        lanes[k % 16] = std::fmaf(Type::decode(row + static_cast<size_t>(k) * Type::bytes), x[k], lanes[k % 16]);
      }
      store_output(args, m, n, tree_sum(lanes));
    }
  }
}

template <class Type>
void dequantize_blocks(const uint8_t* row, int K, float* y) {
  for (int b = 0; b < K / kBlock; ++b) {
    Block block;
    Type::decode(row, b, &block);
    for (int j = 0; j < kBlock; ++j) {
      const float value = block.scale[j / 16] * block.code[j];
      y[b * kBlock + j] = Type::has_minimum ? value + block.minimum : value;
    }
  }
}

template <class Type>
void dequantize_floats(const uint8_t* row, int K, float* y) {
  for (int k = 0; k < K; ++k) y[k] = Type::decode(row + static_cast<size_t>(k) * Type::bytes);
}

}  // namespace
}  // namespace magnitude
