// The portable CRC-32C, eight bytes at a time from tables, and the choice among all that there are.
#include "crc32c.h"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace magnitude::snapshot {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][byte]: what a byte does to the register when k zero bytes follow it.
constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (std::size_t zeros = 1; zeros < 8; ++zeros)
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[zeros - 1][byte];
            tables[zeros][byte] = before >> 8 ^ tables[0][before & 0xFF];
        }
    return tables;
}

constexpr Tables TABLES = make_tables();

// The product of two polynomials modulo P, reflected: bit 31 is 1, bit 0 is x^31.
std::uint32_t product(std::uint32_t a, std::uint32_t b) {
    std::uint32_t sum = 0;
    for (std::uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
        if (a & bit) sum ^= b;
        b = b >> 1 ^ (b & 1 ? CRC32C_POLYNOMIAL : 0);
    }
    return sum;
}

#if defined(__x86_64__)

constexpr std::uint64_t ZMM_STATE = 0xE6;  // XCR0: xmm, ymm, mask registers, zmm

struct Features {
    bool sse42 = false;
    bool avx512 = false;
};

bool has(std::uint32_t word, int bit) { return (word >> bit & 1) != 0; }

std::uint64_t enabled_state() {
    std::uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
}

Features detect() {
    Features features;
    std::uint32_t a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
    features.sse42 = has(c, 1) && has(c, 20);  // PCLMULQDQ, SSE4.2
    const bool is_saved = has(c, 27) && (enabled_state() & ZMM_STATE) == ZMM_STATE;  // OSXSAVE
    if (!features.sse42 || !is_saved || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
    features.avx512 = has(b, 16) && has(b, 31) && has(c, 10);  // AVX512F, AVX512VL, VPCLMULQDQ
    return features;
}

#elif defined(__aarch64__)

bool has_crc() {
#if defined(__linux__)
    constexpr unsigned long HWCAP_CRC32_BIT = 1UL << 7;
    return (getauxval(AT_HWCAP) & HWCAP_CRC32_BIT) != 0;
#else
    return true;  // every ARM64 processor that runs macOS
#endif
}

#endif

}  // namespace

// Behind `bytes` more the first message is worth x^(8 bytes) times as much, which squaring finds; all inversions at begin
// and end cancel.
std::uint32_t joined_crc32c(std::uint32_t first, std::uint32_t second, std::size_t bytes) {
    for (std::uint32_t power = 0x00800000; bytes != 0; bytes >>= 1, power = product(power, power))  // x^8
        if (bytes & 1) first = product(first, power);
    return first ^ second;
}

std::uint32_t advance_table(std::uint32_t crc, const std::uint8_t* data, std::size_t bytes) {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        const std::uint32_t low = crc ^ (data[0] | data[1] << 8 | data[2] << 16 | std::uint32_t{data[3]} << 24);
        crc = TABLES[7][low & 0xFF] ^ TABLES[6][low >> 8 & 0xFF] ^ TABLES[5][low >> 16 & 0xFF] ^ TABLES[4][low >> 24] ^
              TABLES[3][data[4]] ^ TABLES[2][data[5]] ^ TABLES[1][data[6]] ^ TABLES[0][data[7]];
    }
    for (; bytes > 0; ++data, --bytes) crc = crc >> 8 ^ TABLES[0][(crc ^ *data) & 0xFF];
    return crc;
}

int supported_crc32c(Crc32c* implementations) {
    int count = 0;
#if defined(__x86_64__)
    static const Features features = detect();  // once: a virtual machine takes microseconds for each CPUID
    if (features.avx512) implementations[count++] = {"avx512", advance_avx512};
    if (features.sse42) implementations[count++] = {"sse42", advance_sse42};
#elif defined(__aarch64__)
    if (has_crc()) implementations[count++] = {"arm", advance_arm};
#endif
    implementations[count++] = {"table", advance_table};
    return count;
}

AdvanceCrc32c best_crc32c() {
    static const AdvanceCrc32c best = [] {
        Crc32c found[IMPLEMENTATIONS_MAX];
        supported_crc32c(found);
        return found[0].advance;
    }();
    return best;
}

}  // namespace magnitude::snapshot
