// One pass over a GGUF header that believes nothing: every count, length, offset and product is checked before use.
//
//   offset  size  field                         all numbers little-endian, nothing aligned
//   0       4     magic "GGUF"
//   4       4     version, 2 or 3
//   8       8     tensor count
//   16      8     key/value count
//   24      …     key/values    [key: u64 length, bytes] [value type: u32] [value]
//                               string = u64 length, bytes; array = u32 element type, u64 count, elements
//   …       …     tensor infos  [name: u64 length, bytes] [dimension count: u32] [dimensions: u64 …]
//                               [tensor type: u32] [offset: u64, from the data section]
//   …       …     padding up to a multiple of general.alignment (32 where absent), then the data section
//
// Source: ggml/docs/gguf.md, "File Structure". Where it is silent, the stricter reading holds: a key, a tensor name or
// a byte of the data section belongs to one owner, so that no two readers see two different models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "names.h"

namespace magnitude::formats {

constexpr std::uint64_t HEADER_BYTES_MAX = 128u << 20;  // about ten times the largest published vocabulary's
constexpr std::uint64_t KEY_VALUES_MAX = 1u << 16;
constexpr std::uint64_t TENSORS_MAX = 1u << 17;
constexpr std::uint64_t KEY_BYTES_MAX = 65535;  // gguf.md
constexpr std::uint64_t TENSOR_NAME_BYTES_MAX = 64;  // gguf.md
constexpr std::uint64_t ARRAY_ELEMENTS_MAX = 1u << 22;
constexpr unsigned ARRAY_DEPTH_MAX = 4;  // an array of numbers has depth 1
constexpr std::uint32_t DIMENSIONS_MAX = 4;  // gguf.md, "currently at most 4"
constexpr std::uint32_t ALIGNMENT_DEFAULT = 32;
constexpr std::uint32_t ALIGNMENT_MAX = 1u << 21;  // the size of a huge page

enum class ValueType : std::uint32_t {
    U8 = 0, I8 = 1, U16 = 2, I16 = 3, U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10, I64 = 11,
    F64 = 12,
};
constexpr std::uint32_t VALUE_TYPE_COUNT = 13;

// Why a header is refused. `field` and `problem` are UTF-8 and make a sentence: "<field> at offset <offset> <problem>".
struct Defect {
    enum class Kind { NOT_GGUF, FOREIGN_BYTE_ORDER, VERSION_1, UNKNOWN_VERSION, DAMAGED, LIMIT, UNSUPPORTED };
    Kind kind = Kind::DAMAGED;
    std::string field;
    std::uint64_t offset = 0;
    std::string problem;
};

// Where one value lies. Strings: `offset` is their first byte and `count` their length in bytes. Arrays: `offset` is
// their first element's, `count` their elements. Everything else: `count` is 1.
struct Value {
    ValueType type = ValueType::U8;
    ValueType element_type = ValueType::U8;  // of arrays
    std::uint64_t offset = 0;
    std::uint64_t count = 0;
    std::uint64_t end = 0;
};

struct KeyValue {
    std::uint64_t key_offset = 0;  // of the first byte of the key's text
    std::uint32_t key_bytes = 0;
    Value value;
};

struct Tensor {
    std::uint64_t name_offset = 0;
    std::uint32_t name_bytes = 0;
    std::uint32_t type = 0;
    std::uint32_t dimension_count = 0;
    std::uint64_t shape[DIMENSIONS_MAX] = {1, 1, 1, 1};  // fastest first
    std::uint64_t offset_field = 0;  // where the header states the offset
    std::uint64_t offset = 0;        // from the start of the file
    std::uint64_t row_bytes = 0;
    std::uint64_t bytes = 0;
};

// Elements and bytes of a quantisation block by tensor type id; both zero where there is no such type.
struct BlockSizes {
    const std::uint32_t* elements = nullptr;
    const std::uint32_t* bytes = nullptr;
    std::uint32_t count = 0;
};

struct Header {
    std::uint32_t version = 0;
    std::uint32_t alignment = ALIGNMENT_DEFAULT;
    std::vector<KeyValue> key_values;
    std::vector<IndexedName> key_index;
    std::vector<Tensor> tensors;     // in file order
    std::uint64_t header_bytes = 0;  // end of the tensor infos, before padding
    std::uint64_t data_offset = 0;
    std::uint64_t model_end = 0;     // end of the last tensor; header_bytes where there is none
};

struct Bytes {
    const std::uint8_t* data = nullptr;
    std::uint64_t size = 0;

    std::string_view text(std::uint64_t offset, std::uint64_t bytes) const {
        return {reinterpret_cast<const char*>(data) + offset, static_cast<std::size_t>(bytes)};
    }
};

// Scans the header at the start of `bytes`, a part (at least the header) of a file of `file_bytes` bytes.
// Takes time and memory in proportion to the header that is there, not to what it claims.
std::optional<Defect> scan_gguf(Bytes bytes, std::uint64_t file_bytes, bool allows_invalid_magic,
                                const BlockSizes& blocks, Header& header);

// Offsets and lengths of the strings of an array; checked again, because the file may have changed since the scan.
std::optional<Defect> locate_strings(Bytes bytes, std::uint64_t offset, std::uint64_t count, std::uint64_t* offsets,
                                     std::uint32_t* lengths);

// The array (element type, count, elements) whose element type stands at `offset`: an element of a nested array.
std::optional<Defect> locate_array(Bytes bytes, std::uint64_t offset, Value& value);

// The index of a key, where the header has it.
std::optional<std::uint32_t> find_key(Bytes bytes, const Header& header, std::string_view key);

}  // namespace magnitude::formats
