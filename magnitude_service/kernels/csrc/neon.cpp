// The table for ARM64 with products of signed bytes (FEAT_DotProd, ARMv8.2). dispatch.cpp knows what it asks of the
// machine.
#include "neon_lanes.h"
#include "neon_dot.h"
#include "lanes_table.h"

namespace magnitude {

const Ops kNeonOps = make_table("neon");

}  // namespace magnitude
