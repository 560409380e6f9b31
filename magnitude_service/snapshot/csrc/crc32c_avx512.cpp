// CRC-32C with carry-less multiplication of 512-bit registers: four of them fold 256 bytes at once.
#include <immintrin.h>

#include "crc32c_folding.h"

namespace magnitude::snapshot {
namespace {

constexpr int LANES = 4;
constexpr std::size_t STRIDE = LANES * 64;

template <int BITS>
inline __m512i constants() {
    constexpr std::uint64_t first = fold_constant(BITS + 32), second = fold_constant(BITS - 32);
    return _mm512_broadcast_i32x4(_mm_set_epi64x(static_cast<long long>(second), static_cast<long long>(first)));
}

// Four times 128 bits, each as in crc32c_folding.h; 0x96 is the exclusive or of three.
inline __m512i folded(__m512i message, __m512i by, __m512i onto) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(message, by, 0x00),
                                     _mm512_clmulepi64_epi128(message, by, 0x11), onto, 0x96);
}

inline __m512i loaded(const std::uint8_t* data) { return _mm512_loadu_si512(data); }

}  // namespace

std::uint32_t advance_avx512(std::uint32_t crc, const std::uint8_t* data, std::size_t bytes) {
    if (bytes < 2 * STRIDE) return advance_sse42(crc, data, bytes);
    __m512i lanes[LANES];
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = loaded(data + lane * 64);
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
    const __m512i by_stride = constants<STRIDE * 8>();
    for (data += STRIDE, bytes -= STRIDE; bytes >= STRIDE; data += STRIDE, bytes -= STRIDE)
        for (int lane = 0; lane < LANES; ++lane) lanes[lane] = folded(lanes[lane], by_stride, loaded(data + lane * 64));
    const __m512i by_lane = constants<512>();
    for (int lane = 1; lane < LANES; ++lane) lanes[lane] = folded(lanes[lane - 1], by_lane, lanes[lane]);
    // What is left is a message of 64 bytes with the same CRC, from a register of zero.
    alignas(64) std::uint8_t last[64];
    _mm512_store_si512(last, lanes[LANES - 1]);
    return advance_sse42(advance_sse42(0, last, sizeof last), data, bytes);
}

}  // namespace magnitude::snapshot
