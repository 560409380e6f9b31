// CRC-32C with the instructions of ARMv8's CRC extension.
#if defined(__aarch64__)
#include <arm_acle.h>

#include "crc32c.h"

namespace magnitude::snapshot {

std::uint32_t advance_arm(std::uint32_t crc, const std::uint8_t* data, std::size_t bytes) {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        std::uint64_t word;
        __builtin_memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; bytes > 0; ++data, --bytes) crc = __crc32cb(crc, *data);
    return crc;
}

}  // namespace magnitude::snapshot
#endif
