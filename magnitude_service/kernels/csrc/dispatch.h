// What the translation units of the instruction sets share: their tables, and plain code that needs no second version.
//
// A table's functions are compiled for its instruction set: call none before dispatch.cpp has found that this machine
// runs it. The tables themselves are constants.
#pragma once

#include "ops.h"

namespace magnitude {

extern const Ops kScalarOps;
#if defined(__x86_64__)
extern const Ops kAvx2Ops;
extern const Ops kAvxVnniOps;
extern const Ops kAvx512Ops;
extern const Ops kAmxOps;
#elif defined(__aarch64__)
extern const Ops kNeonOps;
extern const Ops kNeonI8mmOps;
#endif

constexpr int kTablesMax = 8;   // more than any machine offers

// The table of that name if this machine offers it, or null. It has not been tried.
const Ops* find_ops(const char* name);

// Ops::dequantize_row of every table: one row at a time is a look-up of an embedding, which plain code does well.
// Defined in scalar.cpp.
template <TensorType type>
void dequantize_row(const uint8_t* row, int K, float* y);

}  // namespace magnitude
