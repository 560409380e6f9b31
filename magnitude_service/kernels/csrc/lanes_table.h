// The table of an instruction set whose lanes and dot files are already included.
#pragma once

#include "dispatch.h"
#include "lanes_attention.h"

namespace magnitude {
namespace {

template <TensorType type, class Blocks>
constexpr void set_blocks(Ops* ops) {
  ops->matmul[static_cast<int>(type)] = matmul_blocks<Blocks>;
  ops->dequantize_row[static_cast<int>(type)] = dequantize_row<type>;
}

template <TensorType type, class Element>
constexpr void set_floats(Ops* ops) {
  ops->matmul[static_cast<int>(type)] = matmul_floats<Element>;
  ops->dequantize_row[static_cast<int>(type)] = dequantize_row<type>;
}

constexpr Ops make_table(const char* name) {
  Ops ops{};
  ops.name = name;
  ops.quantized_row_bytes = quantized_row_bytes;
  ops.quantize = quantize;
  ops.matmul_scratch_bytes = matmul_scratch_bytes;
  set_floats<TensorType::F32, F32>(&ops);
  set_floats<TensorType::F16, F16>(&ops);
  set_floats<TensorType::BF16, BF16>(&ops);
  set_blocks<TensorType::Q4_0, Q4_0>(&ops);
  set_blocks<TensorType::Q4_1, Q4_1>(&ops);
  set_blocks<TensorType::Q5_0, Q5_0>(&ops);
  set_blocks<TensorType::Q5_1, Q5_1>(&ops);
  set_blocks<TensorType::Q8_0, Q8_0>(&ops);
  set_blocks<TensorType::Q4_K, Q4_K>(&ops);
  set_blocks<TensorType::Q5_K, Q5_K>(&ops);
  set_blocks<TensorType::Q6_K, Q6_K>(&ops);
  ops.rms_norm = rms_norm;
  ops.silu_multiply = silu_multiply;
  ops.add = add_rows;
  ops.rope_pairs = rope_pairs;
  ops.rope_halves = rope_halves;
  ops.store_key = store_key;
  ops.store_value = store_value;
  ops.attention_scratch_bytes = attention_scratch_bytes;
  ops.attention_chunk = attention_chunk;
  ops.attention_fold = attention_fold;
  ops.attention_finish = attention_finish;
  ops.softmax_statistics = softmax_statistics;
  return ops;
}

}  // namespace
}  // namespace magnitude
