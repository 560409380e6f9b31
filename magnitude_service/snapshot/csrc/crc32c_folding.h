// The constants of folding: how a stretch of message is moved behind a later one without changing the CRC of both.
//
// A message is a polynomial whose first bit has the highest power. 128 bits of it, A (first 64 bits) and B, may be taken
// away if  A x^(D+64) + B x^D  is added D bits later; modulo the polynomial P of the CRC these powers have 32 bits:
//
//     A ⊗ fold_constant(D + 32)  +  B ⊗ fold_constant(D - 32)      ⊗: 64 × 64 → 128 bits without carries
//
// 32 less than above, since in reflected words (bit 0 has the highest power) ⊗ gives the product times x, and a constant of
// 32 bits that stands in bits 1…32 of its word is x^31 times itself.
// Source: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.
#pragma once

#include "crc32c.h"

namespace magnitude::snapshot {

// x^power modulo P, reflected, in bits 1…32.
constexpr std::uint64_t fold_constant(int power) {
    std::uint32_t value = 0x80000000;  // 1
    for (; power > 0; --power) value = value >> 1 ^ (value & 1 ? CRC32C_POLYNOMIAL : 0);
    return std::uint64_t{value} << 1;
}

}  // namespace magnitude::snapshot
