// The tables for AVX-512 (F, BW, DQ, VL) with VNNI, and with matrix tiles (AMX-INT8) beside it. dispatch.cpp knows what
// they ask of the machine.
#include "avx512_lanes.h"
#include "avx512_dot.h"
#include "lanes_table.h"
#include "amx_matmul.h"

namespace magnitude {
namespace {

// AVX-512's in everything but products of many tokens. Its speed was never measured, so that only its name chooses it.
constexpr Ops make_amx_table() {
  Ops ops = make_table("amx");
  ops.by_name_only = true;
  const auto matmul = [&](TensorType type) -> auto& { return ops.matmul[static_cast<int>(type)]; };
  matmul(TensorType::Q4_0) = matmul_tiles<Q4_0>;
  matmul(TensorType::Q4_1) = matmul_tiles<Q4_1>;
  matmul(TensorType::Q5_0) = matmul_tiles<Q5_0>;
  matmul(TensorType::Q5_1) = matmul_tiles<Q5_1>;
  matmul(TensorType::Q8_0) = matmul_tiles<Q8_0>;
  matmul(TensorType::Q4_K) = matmul_tiles<Q4_K>;
  matmul(TensorType::Q5_K) = matmul_tiles<Q5_K>;
  matmul(TensorType::Q6_K) = matmul_tiles<Q6_K>;
  return ops;
}

}  // namespace

const Ops kAvx512Ops = make_table("avx512");
const Ops kAmxOps = make_amx_table();

}  // namespace magnitude
