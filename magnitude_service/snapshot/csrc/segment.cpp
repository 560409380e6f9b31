#include "segment.h"

#include "crc32c.h"

namespace magnitude::snapshot {
namespace {

constexpr std::uint16_t FORMAT_VERSION = 1;
constexpr std::size_t SESSION_ID_AT = 124, HEADER_CRC_AT = 252;
constexpr std::size_t END_MARK_BYTES = 40, END_CRC_AT = 36;
constexpr std::uint64_t BLOB_ALIGNMENT = 64;
constexpr char PADDING_TAG = 14 << 3 | 2, CONTENTS_TAG = 15 << 3 | 2, BLOB_TAG = 2 << 3 | 2;

template <int BYTES>
void store(char* to, std::uint64_t value) {
    for (int index = 0; index < BYTES; ++index) to[index] = static_cast<char>(value >> 8 * index);
}

std::size_t varint_bytes(std::uint64_t value) {
    std::size_t bytes = 1;
    while (value >>= 7) ++bytes;
    return bytes;
}

std::uint32_t crc_of(const char* data, std::size_t bytes) {
    return ~best_crc32c()(~std::uint32_t{0}, reinterpret_cast<const std::uint8_t*>(data), bytes);
}

}  // namespace

void store_u64(char* to, std::uint64_t value) { store<8>(to, value); }

void append_varint(std::string& out, std::uint64_t value) {
    for (; value > 0x7F; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
}

std::string encode_header(const SegmentHeader& header) {
    std::string out(HEADER_BYTES, '\0');
    char* at = out.data();
    out.replace(0, 8, "MAGSTATE");
    store<2>(at + 8, FORMAT_VERSION);
    store<2>(at + 10, header.kind);
    store<8>(at + 16, header.log_id);
    store<8>(at + 24, header.offset);
    store<8>(at + 32, header.sequence);
    store<8>(at + 40, header.durable_through);
    store<8>(at + 48, header.body_bytes);
    store<4>(at + 56, header.envelope_bytes);
    store<4>(at + 60, header.envelope_crc);
    store<8>(at + 64, header.index_offset);
    store<8>(at + 72, header.time_ns);
    store<8>(at + 80, header.version);
    store<8>(at + 88, header.floor);
    store<4>(at + 96, header.session_id.size());
    out.replace(SESSION_ID_AT, header.session_id.size(), header.session_id);
    store<4>(at + HEADER_CRC_AT, crc_of(at, HEADER_CRC_AT));
    return out;
}

std::string encode_end(const SegmentHeader& header) {
    const std::size_t gap = -(HEADER_BYTES + header.body_bytes) % 8;
    std::string out(gap + END_MARK_BYTES, '\0');
    char* at = out.data() + gap;
    out.replace(gap, 8, "MAGSTEND");
    store<8>(at + 8, header.log_id);
    store<8>(at + 16, header.offset);
    store<8>(at + 24, header.sequence);
    store<4>(at + END_CRC_AT, crc_of(at, END_CRC_AT));
    return out;
}

std::string encode_glue(std::uint64_t position, std::uint64_t content_bytes) {
    const std::uint64_t front_bytes = 1 + varint_bytes(content_bytes);
    const std::uint64_t alignment = content_bytes >= PAGE_BYTES ? PAGE_BYTES : BLOB_ALIGNMENT;
    std::uint64_t gap = -(position + front_bytes) % alignment;
    while (gap < 2 || gap == 130) gap += alignment;  // that cannot be filled by one field
    const std::uint64_t zeros = gap - (gap < 130 ? 2 : 3);
    std::string out;
    out.reserve(gap + front_bytes);
    out.push_back(PADDING_TAG);
    append_varint(out, zeros);
    out.append(zeros, '\0');
    out.push_back(CONTENTS_TAG);
    append_varint(out, content_bytes);
    return out;
}

EncodedBlob encode_blob(std::string_view name, std::uint64_t content_bytes, std::uint32_t crc) {
    std::string fields("\x0a");
    append_varint(fields, name.size());
    fields.append(name);
    fields.push_back('\x11');
    const std::size_t offset_at = fields.size();
    fields.append(8, '\0');
    if (content_bytes != 0) {  // protobuf leaves zeros out
        fields.push_back('\x18');
        append_varint(fields, content_bytes);
    }
    if (crc != 0) {
        fields.push_back('\x25');
        fields.append(4, '\0');
        store<4>(fields.data() + fields.size() - 4, crc);
    }
    std::string out(1, BLOB_TAG);
    append_varint(out, fields.size());
    const std::size_t front_bytes = out.size();
    return {out + fields, front_bytes + offset_at};
}

}  // namespace magnitude::snapshot
