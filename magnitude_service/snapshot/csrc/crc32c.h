// CRC-32C (Castagnoli, reflected) of bytes in memory: one function per instruction set, all with the same answers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace magnitude::snapshot {

// The polynomial without its highest term, bit 0 for x^31.
constexpr std::uint32_t CRC32C_POLYNOMIAL = 0x82F63B78;

// The register after `bytes` more bytes. The register is the CRC with all bits inverted; nothing is read beyond the
// end, and `data` needs no alignment.
using AdvanceCrc32c = std::uint32_t (*)(std::uint32_t crc_register, const std::uint8_t* data, std::size_t bytes);

struct Crc32c {
    const char* name;
    AdvanceCrc32c advance;
};

std::uint32_t advance_table(std::uint32_t crc_register, const std::uint8_t* data, std::size_t bytes);
#if defined(__x86_64__)
std::uint32_t advance_sse42(std::uint32_t crc_register, const std::uint8_t* data, std::size_t bytes);
std::uint32_t advance_avx512(std::uint32_t crc_register, const std::uint8_t* data, std::size_t bytes);
#elif defined(__aarch64__)
std::uint32_t advance_arm(std::uint32_t crc_register, const std::uint8_t* data, std::size_t bytes);
#endif

// The CRC of one message and `bytes` more, whose own CRC is `second`.
std::uint32_t joined_crc32c(std::uint32_t first, std::uint32_t second, std::size_t bytes);

// Those that this machine can run, best first; returns how many they are, at most IMPLEMENTATIONS_MAX.
constexpr int IMPLEMENTATIONS_MAX = 3;
int supported_crc32c(Crc32c* implementations);

// The first of them.
AdvanceCrc32c best_crc32c();

}  // namespace magnitude::snapshot
