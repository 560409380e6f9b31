// The table for ARM64 with products of byte matrices (FEAT_I8MM, ARMv8.6): neon's, but that panels of many tokens are
// multiplied by smmla. dispatch.cpp knows what it asks of the machine.
#include "neon_lanes.h"
#include "neon_dot.h"
#include "lanes_table.h"

namespace magnitude {

const Ops kNeonI8mmOps = make_table("neon_i8mm");

}  // namespace magnitude
