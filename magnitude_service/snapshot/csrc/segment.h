// Segments of the state file in bytes: the twins of record.py's functions of these names. FORMAT.md draws the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace magnitude::snapshot {

constexpr std::size_t HEADER_BYTES = 256;
constexpr std::size_t PAGE_BYTES = 4096;

struct SegmentHeader {
    std::uint16_t kind;
    std::uint64_t log_id, offset, sequence, durable_through, body_bytes;
    std::uint32_t envelope_bytes, envelope_crc;
    std::uint64_t index_offset, time_ns, version, floor;
    std::string_view session_id;  // at most 128 bytes
};

std::string encode_header(const SegmentHeader& header);
std::string encode_end(const SegmentHeader& header);

// What lies between `position`, from the segment's start, and the blob of so many bytes behind it.
std::string encode_glue(std::uint64_t position, std::uint64_t content_bytes);

// A StoredBlob within a StoredState, as protobuf writes it; its offset is filled in later, at `offset_at`.
struct EncodedBlob {
    std::string bytes;
    std::size_t offset_at;
};
EncodedBlob encode_blob(std::string_view name, std::uint64_t content_bytes, std::uint32_t crc);

void append_varint(std::string& out, std::uint64_t value);
void store_u64(char* to, std::uint64_t value);

}  // namespace magnitude::snapshot
