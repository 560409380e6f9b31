// The bytes of a quantised block, by GGUF's type. Nothing here computes: every instruction set includes this file.
//
// All numbers are little-endian; f16 is IEEE binary16. A nibble byte holds element j low and element j+16 high
// (j+32 high in the K types, whose rows of 32 bytes hold two sub-blocks). w is the weight's value.
//
//   Q4_0   18 B of 32   d f16 | qs 16                               w = d*(q - 8)
//   Q4_1   20 B of 32   d f16 | m f16 | qs 16                       w = d*q + m
//   Q5_0   22 B of 32   d f16 | qh 4 | qs 16                        w = d*(q - 16)     bit 4 of element j: bit j of qh
//   Q5_1   24 B of 32   d f16 | m f16 | qh 4 | qs 16                w = d*q + m
//   Q8_0   34 B of 32   d f16 | qs 32 (signed)                      w = d*q
//   Q4_K  144 B of 256  d f16 | dmin f16 | scales 12 | qs 128       w = d*sc*q - dmin*m
//   Q5_K  176 B of 256  d f16 | dmin f16 | scales 12 | qh 32 | qs 128        bit 4 of sub-block s: bit s of qh[j]
//   Q6_K  210 B of 256  ql 128 | qh 64 | scales 16 (signed) | d f16  w = d*sc*(q - 32), one scale per 16 elements
//
// The 12 scale bytes of Q4_K and Q5_K hold eight 6-bit scales s0…s7 and eight 6-bit minima m0…m7:
//
//   byte 0…3    low 6 bits: s0…s3      high 2 bits: bits 4, 5 of s4…s7
//   byte 4…7    low 6 bits: m0…m3      high 2 bits: bits 4, 5 of m4…m7
//   byte 8…11   low 4 bits: bits 0…3 of s4…s7    high 4 bits: bits 0…3 of m4…m7
//
// Q6_K's halves h = 0, 1 of 128 elements are four sub-blocks of 32: element j of sub-block s has its low nibble in
// ql[64h + 32(s%2) + j] (low for s < 2, else high) and bits 4, 5 at 2s of qh[32h + j].
// Source: the GGUF format's description of its types; gguf.quants is the oracle of the tests.
#pragma once

#include "ops.h"

namespace magnitude {

constexpr int kSuperBlock = 256;   // elements of a K type's block

constexpr int kBytesQ4_0 = 18;
constexpr int kBytesQ4_1 = 20;
constexpr int kBytesQ5_0 = 22;
constexpr int kBytesQ5_1 = 24;
constexpr int kBytesQ8_0 = 34;
constexpr int kBytesQ4_K = 144;
constexpr int kBytesQ5_K = 176;
constexpr int kBytesQ6_K = 210;

// A row of K elements is K / elements blocks of `bytes`; elements is 0 for a type that no table has.
struct BlockShape {
  int elements, bytes;
};

static constexpr BlockShape block_shape(TensorType type) {
  switch (type) {
    case TensorType::F32: return {1, 4};
    case TensorType::F16: return {1, 2};
    case TensorType::BF16: return {1, 2};
    case TensorType::Q4_0: return {kBlock, kBytesQ4_0};
    case TensorType::Q4_1: return {kBlock, kBytesQ4_1};
    case TensorType::Q5_0: return {kBlock, kBytesQ5_0};
    case TensorType::Q5_1: return {kBlock, kBytesQ5_1};
    case TensorType::Q8_0: return {kBlock, kBytesQ8_0};
    case TensorType::Q4_K: return {kSuperBlock, kBytesQ4_K};
    case TensorType::Q5_K: return {kSuperBlock, kBytesQ5_K};
    case TensorType::Q6_K: return {kSuperBlock, kBytesQ6_K};
  }
  return {0, 0};
}

// An activation's largest magnitude as an integer: two planes of a signed byte each reach 127*256 exactly.
constexpr float kActivationMax = 32512.0f;

}  // namespace magnitude
