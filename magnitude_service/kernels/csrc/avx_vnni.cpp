// The table for AVX2 with VNNI of its own (AVX-VNNI): AVX2's, but that for many tokens a product and its addition are one
// instruction. dispatch.cpp knows what it asks of the machine.
#include "avx2_lanes.h"
#include "avx2_dot.h"
#include "lanes_table.h"

namespace magnitude {

const Ops kAvxVnniOps = make_table("avx_vnni");

}  // namespace magnitude
