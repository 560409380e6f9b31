// The table for AVX2 with FMA, F16C and BMI2. dispatch.cpp knows what it asks of the machine.
#include "avx2_lanes.h"
#include "avx2_dot.h"
#include "lanes_table.h"

namespace magnitude {

const Ops kAvx2Ops = make_table("avx2");

}  // namespace magnitude
