// The one exponential function, step by step the same on every instruction set. Constants only.
//
//   x = min(max(x, kExpLow), kExpHigh)      a NaN passes through; -inf gives 0, +inf gives inf
//   t = fma(x, kLog2E, kExpRound); n = t - kExpRound          the nearest integer to x / ln 2
//   r = fma(n, -kLn2High, x); r = fma(n, -kLn2Low, r)         |r| <= ln 2 / 2
//   p = e6; p = fma(p, r, e5) … fma(p, r, e2); p = fma(p, r, 1); p = fma(p, r, 1)
//   exp(x) = p * 2^(n >> 1) * 2^(n - (n >> 1))                two exact steps, so that subnormals round once
//
// Error: at most 1.1 units in the last place over all normal results (tests/unit/kernels/test_ops_vector.py).
// Source: e2…e6 are a minimax fit of (exp(r) - 1 - r) / r² (relative error of exp below 4e-9 before rounding).
#pragma once

namespace magnitude {

constexpr float kExpLow = -104.0f, kExpHigh = 89.0f;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kExpRound = 0x1.8p+23f;   // adding it rounds to an integer, which then stands in the low bits
constexpr float kLn2High = 0x1.62e43p-1f, kLn2Low = -0x1.05c61p-29f;
constexpr float kExp2 = 0x1.fffffcp-2f, kExp3 = 0x1.555492p-3f, kExp4 = 0x1.5558f2p-5f, kExp5 = 0x1.1239f2p-7f,
                kExp6 = 0x1.6a241ap-10f;

}  // namespace magnitude
