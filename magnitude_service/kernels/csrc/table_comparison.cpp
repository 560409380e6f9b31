#include "table_comparison.h"

#include "comparison_attention.h"
#include "comparison_matmul.h"
#include "comparison_vector.h"

namespace magnitude {
namespace {

struct Entry {
  const char* name;
  bool (*holds)(Comparison&);
};

constexpr Entry kEntries[] = {
    {"matmul F32", matmul_holds<TensorType::F32>},
    {"matmul F16", matmul_holds<TensorType::F16>},
    {"matmul BF16", matmul_holds<TensorType::BF16>},
    {"matmul Q4_0", matmul_holds<TensorType::Q4_0>},
    {"matmul Q4_1", matmul_holds<TensorType::Q4_1>},
    {"matmul Q5_0", matmul_holds<TensorType::Q5_0>},
    {"matmul Q5_1", matmul_holds<TensorType::Q5_1>},
    {"matmul Q8_0", matmul_holds<TensorType::Q8_0>},
    {"matmul Q4_K", matmul_holds<TensorType::Q4_K>},
    {"matmul Q5_K", matmul_holds<TensorType::Q5_K>},
    {"matmul Q6_K", matmul_holds<TensorType::Q6_K>},
    {"dequantize F32", dequantize_holds<TensorType::F32>},
    {"dequantize F16", dequantize_holds<TensorType::F16>},
    {"dequantize BF16", dequantize_holds<TensorType::BF16>},
    {"dequantize Q4_0", dequantize_holds<TensorType::Q4_0>},
    {"dequantize Q4_1", dequantize_holds<TensorType::Q4_1>},
    {"dequantize Q5_0", dequantize_holds<TensorType::Q5_0>},
    {"dequantize Q5_1", dequantize_holds<TensorType::Q5_1>},
    {"dequantize Q8_0", dequantize_holds<TensorType::Q8_0>},
    {"dequantize Q4_K", dequantize_holds<TensorType::Q4_K>},
    {"dequantize Q5_K", dequantize_holds<TensorType::Q5_K>},
    {"dequantize Q6_K", dequantize_holds<TensorType::Q6_K>},
    {"rms_norm", rms_norm_holds},
    {"silu_multiply", silu_multiply_holds},
    {"add", add_holds},
    {"rope_pairs", rope_holds<false>},
    {"rope_halves", rope_holds<true>},
    {"softmax_statistics", softmax_statistics_holds},
    {"store_key F32", store_holds<CacheType::F32, true>},
    {"store_key F16", store_holds<CacheType::F16, true>},
    {"store_key BF16", store_holds<CacheType::BF16, true>},
    {"store_key Q8_0", store_holds<CacheType::Q8_0, true>},
    {"store_key Q4_0", store_holds<CacheType::Q4_0, true>},
    {"store_value F32", store_holds<CacheType::F32, false>},
    {"store_value F16", store_holds<CacheType::F16, false>},
    {"store_value BF16", store_holds<CacheType::BF16, false>},
    {"store_value Q8_0", store_holds<CacheType::Q8_0, false>},
    {"store_value Q4_0", store_holds<CacheType::Q4_0, false>},
    {"attention_chunk F32", attention_chunk_holds<CacheType::F32>},
    {"attention_chunk F16", attention_chunk_holds<CacheType::F16>},
    {"attention_chunk BF16", attention_chunk_holds<CacheType::BF16>},
    {"attention_chunk Q8_0", attention_chunk_holds<CacheType::Q8_0>},
    {"attention_chunk Q4_0", attention_chunk_holds<CacheType::Q4_0>},
    {"attention_fold", attention_fold_holds},
    {"attention_finish", attention_finish_holds},
};

}  // namespace

int comparison_count() { return static_cast<int>(sizeof kEntries / sizeof kEntries[0]); }

const char* comparison_name(int index) { return kEntries[index].name; }

bool comparison_holds(int index, const Ops& table, const Ops& oracle, Extent extent, ComparisonMemory& memory) {
  Comparison comparison{table, oracle, extent == Extent::kThorough, memory, Draw(static_cast<uint64_t>(index) + 1)};
  return kEntries[index].holds(comparison);
}

}  // namespace magnitude
