// CRC-32C with the instruction for it: three stretches side by side, since each waits three cycles for the one before.
#include <nmmintrin.h>
#include <wmmintrin.h>

#include "crc32c_folding.h"

namespace magnitude::snapshot {
namespace {

inline std::uint64_t word_at(const std::uint8_t* data) {
    std::uint64_t word;
    __builtin_memcpy(&word, data, sizeof word);
    return word;
}

// What moves a register behind `BITS` of message: the low 64 bits of the product are a message of their own, which the
// instruction multiplies by x^32 and takes modulo P.
template <int BITS>
inline std::uint64_t moved(std::uint64_t crc_register) {
    const __m128i by = _mm_cvtsi64_si128(static_cast<long long>(fold_constant(BITS - 32)));
    const __m128i message = _mm_cvtsi64_si128(static_cast<long long>(crc_register));
    return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(message, by, 0x00)));
}

constexpr int LINE_BYTES = 64;

inline void prefetch(const std::uint8_t* data) { _mm_prefetch(reinterpret_cast<const char*>(data), _MM_HINT_T0); }

// Takes off as many times three stretches as there are. The next three are fetched meanwhile: the processor itself sees
// three streams that end after a few lines. From memory that is 22 GB/s instead of 14 (AMD EPYC, Zen 3, 2026-11-29).
template <int STRETCH>
inline std::uint64_t advance_stretches(std::uint64_t crc, const std::uint8_t*& data, std::size_t& bytes) {
    for (; bytes >= 3 * STRETCH; data += 3 * STRETCH, bytes -= 3 * STRETCH) {
        std::uint64_t second = 0, third = 0;
        for (int line = 0; line < STRETCH; line += LINE_BYTES) {
            for (int place = 0; place < 3; ++place) prefetch(data + (3 + place) * STRETCH + line);
            for (int offset = line; offset < line + LINE_BYTES; offset += 8) {
                crc = _mm_crc32_u64(crc, word_at(data + offset));
                second = _mm_crc32_u64(second, word_at(data + STRETCH + offset));
                third = _mm_crc32_u64(third, word_at(data + 2 * STRETCH + offset));
            }
        }
        crc = _mm_crc32_u64(0, moved<2 * STRETCH * 8>(crc) ^ moved<STRETCH * 8>(second)) ^ third;
    }
    return crc;
}

}  // namespace

std::uint32_t advance_sse42(std::uint32_t crc_register, const std::uint8_t* data, std::size_t bytes) {
    std::uint64_t crc = crc_register;
    crc = advance_stretches<2048>(crc, data, bytes);
    crc = advance_stretches<128>(crc, data, bytes);
    for (; bytes >= 8; data += 8, bytes -= 8) crc = _mm_crc32_u64(crc, word_at(data));
    for (; bytes > 0; ++data, --bytes) crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), *data);
    return static_cast<std::uint32_t>(crc);
}

}  // namespace magnitude::snapshot
