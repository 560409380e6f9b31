// The table for AVX-512 (F, BW, DQ, VL) with VNNI. dispatch.cpp knows what it asks of the machine.
#include "avx512_lanes.h"
#include "avx512_dot.h"
#include "lanes_table.h"

namespace magnitude {

const Ops kAvx512Ops = make_table("avx512");

}  // namespace magnitude
