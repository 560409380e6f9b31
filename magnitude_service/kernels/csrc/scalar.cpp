// The table in plain C++: runs anywhere, and is the oracle of every other table.
#include "dispatch.h"
#include "scalar_attention.h"

namespace magnitude {

template <>
void dequantize_row<TensorType::F32>(const uint8_t* row, int K, float* y) {
  dequantize_floats<F32>(row, K, y);
}
template <>
void dequantize_row<TensorType::F16>(const uint8_t* row, int K, float* y) {
  dequantize_floats<F16>(row, K, y);
}
template <>
void dequantize_row<TensorType::BF16>(const uint8_t* row, int K, float* y) {
  dequantize_floats<BF16>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q4_0>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q4_0>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q4_1>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q4_1>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q5_0>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q5_0>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q5_1>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q5_1>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q8_0>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q8_0>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q4_K>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q4_K>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q5_K>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q5_K>(row, K, y);
}
template <>
void dequantize_row<TensorType::Q6_K>(const uint8_t* row, int K, float* y) {
  dequantize_blocks<Q6_K>(row, K, y);
}

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

constexpr Ops make_table() {
  Ops ops{};
  ops.name = "scalar";
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

const Ops kScalarOps = make_table();

}  // namespace magnitude
