#include "gguf_scan.h"

#include <algorithm>
#include <cstring>

#include "names.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF is read in place: only little-endian machines are supported"
#endif

namespace magnitude::formats {
namespace {

constexpr std::uint64_t KEY_VALUE_BYTES_MIN = 8 + 1 + 4 + 1;
constexpr std::uint64_t TENSOR_INFO_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::uint64_t ARRAY_BYTES_MIN = 4 + 8;
constexpr std::uint64_t ELEMENT_COUNT_MAX = INT64_MAX;  // so that every signed 64-bit reader agrees with us

// Bytes of a value of fixed size; 0 for strings and arrays.
std::uint64_t value_bytes(ValueType type) {
    switch (type) {
        case ValueType::U8: case ValueType::I8: case ValueType::BOOL: return 1;
        case ValueType::U16: case ValueType::I16: return 2;
        case ValueType::U32: case ValueType::I32: case ValueType::F32: return 4;
        case ValueType::U64: case ValueType::I64: case ValueType::F64: return 8;
        case ValueType::STRING: case ValueType::ARRAY: return 0;
    }
    return 0;
}

// Fewest bytes that one element of an array takes.
std::uint64_t element_bytes_min(ValueType type) {
    if (type == ValueType::STRING) return 8;
    if (type == ValueType::ARRAY) return ARRAY_BYTES_MIN;
    return value_bytes(type);
}

std::string number(std::uint64_t value) { return std::to_string(value); }

class Scanner {
  public:
    Scanner(Bytes bytes, std::uint64_t position = 0)
        : bytes_(bytes), end_(std::min(bytes.size, HEADER_BYTES_MAX)), position_(position) {}

    bool scan(std::uint64_t file_bytes, bool allows_invalid_magic, const BlockSizes& blocks, Header& header);
    bool array(const std::string& field, unsigned depth, Value& value);
    bool strings(const std::string& field, std::uint64_t count, std::uint64_t* offsets, std::uint32_t* lengths);

    std::optional<Defect> defect;

  private:
    bool refuse(Defect::Kind kind, std::string field, std::uint64_t offset, std::string problem) {
        defect = Defect{kind, std::move(field), offset, std::move(problem)};
        return false;
    }

    bool refuse_cut(const std::string& field, std::uint64_t offset, const std::string& needed) {
        if (end_ < bytes_.size)
            return refuse(Defect::Kind::LIMIT, field, offset,
                          "needs " + needed + ", which ends beyond the limit of " + number(HEADER_BYTES_MAX) +
                              " bytes for a header");
        return refuse(Defect::Kind::DAMAGED, field, offset,
                      "needs " + needed + ", but only " + number(remaining()) + " bytes follow");
    }

    bool refuse_clash(const NameClash& clash, const std::string& field, std::uint64_t later, std::uint64_t earlier) {
        const char* const problem = clash.is_equal ? "stands there a second time; it was first at offset "
                                                   : "is one of many that were made to collide, like that at offset ";
        return refuse(Defect::Kind::DAMAGED, field, later, problem + number(earlier));
    }

    std::uint64_t remaining() const { return position_ < end_ ? end_ - position_ : 0; }

    template <typename T>
    T load(std::uint64_t offset) const {
        T value;
        std::memcpy(&value, bytes_.data + offset, sizeof(T));
        return value;
    }

    template <typename T, typename Field>
    bool read(const Field& field, T& value) {
        if (remaining() < sizeof(T)) return refuse_cut(field(), position_, number(sizeof(T)) + " bytes");
        value = load<T>(position_);
        position_ += sizeof(T);
        return true;
    }

    bool magic_and_version(bool allows_invalid_magic, std::uint32_t& version);
    bool count(const char* field, std::uint64_t entry_bytes_min, std::uint64_t limit, std::uint64_t& value);
    bool name(const std::string& field, std::uint64_t bytes_max, std::uint64_t& offset, std::uint32_t& bytes);
    bool value_type(const std::string& field, ValueType& type);
    bool value(const std::string& field, Value& value);
    bool booleans(const std::string& field, std::uint64_t offset, std::uint64_t count);
    bool key_values(std::uint64_t count, Header& header);
    bool alignment(Header& header);
    bool tensors(std::uint64_t count, const BlockSizes& blocks, Header& header);
    bool tensor(const std::string& field, const BlockSizes& blocks, Tensor& tensor);
    bool dimensions(const std::string& field, Tensor& tensor, std::uint64_t& elements);
    bool place(std::uint64_t file_bytes, Header& header);
    bool unique_tensor_names(const Header& header);
    bool disjoint_tensors(const Header& header);
    std::string tensor_field(const Tensor& tensor) const {
        return "tensor " + quoted(bytes_.text(tensor.name_offset, tensor.name_bytes));
    }

    Bytes bytes_;
    std::uint64_t end_;
    std::uint64_t position_;
};

bool Scanner::scan(std::uint64_t file_bytes, bool allows_invalid_magic, const BlockSizes& blocks, Header& header) {
    std::uint64_t tensor_count = 0, key_value_count = 0;
    if (!magic_and_version(allows_invalid_magic, header.version)) return false;
    if (!count("the tensor count", TENSOR_INFO_BYTES_MIN, TENSORS_MAX, tensor_count)) return false;
    if (!count("the key/value count", KEY_VALUE_BYTES_MIN, KEY_VALUES_MAX, key_value_count)) return false;
    if (!key_values(key_value_count, header) || !alignment(header)) return false;
    if (!tensors(tensor_count, blocks, header)) return false;
    header.header_bytes = position_;
    header.data_offset = (position_ + header.alignment - 1) / header.alignment * header.alignment;
    return place(file_bytes, header) && unique_tensor_names(header) && disjoint_tensors(header);
}

bool Scanner::magic_and_version(bool allows_invalid_magic, std::uint32_t& version) {
    constexpr std::string_view MAGIC = "GGUF", SWAPPED_MAGIC = "FUGG";
    const std::string_view found = bytes_.text(0, std::min<std::uint64_t>(MAGIC.size(), end_));
    const auto magic_field = [] { return std::string("the magic"); };
    if (found.size() == MAGIC.size() && found == SWAPPED_MAGIC)
        return refuse(Defect::Kind::FOREIGN_BYTE_ORDER, magic_field(), 0, "is that of a big-endian file");
    if (found != MAGIC.substr(0, found.size()) && !allows_invalid_magic)
        return refuse(Defect::Kind::NOT_GGUF, magic_field(), 0, "is not GGUF's");
    std::uint32_t ignored = 0;
    if (!read(magic_field, ignored)) return false;
    const auto field = [] { return std::string("the version"); };
    if (!read(field, version)) return false;
    if (version == 2 || version == 3) return true;
    if (version == 1) return refuse(Defect::Kind::VERSION_1, field(), 4, "is 1");
    const std::uint32_t swapped = version >> 24 | (version >> 8 & 0xFF00) | (version << 8 & 0xFF0000) | version << 24;
    if (swapped >= 1 && swapped <= 3)
        return refuse(Defect::Kind::FOREIGN_BYTE_ORDER, field(), 4, "is " + number(swapped) + " in big-endian order");
    return refuse(Defect::Kind::UNKNOWN_VERSION, field(), 4, "is " + number(version));
}

bool Scanner::count(const char* field, std::uint64_t entry_bytes_min, std::uint64_t limit, std::uint64_t& value) {
    const std::uint64_t offset = position_;
    if (!read([&] { return std::string(field); }, value)) return false;
    if (value > limit)
        return refuse(Defect::Kind::LIMIT, field, offset, "is " + number(value) + "; at most " + number(limit) + " are read");
    if (value > remaining() / entry_bytes_min)
        return refuse_cut(field, offset, "at least " + number(value * entry_bytes_min) + " bytes for " + number(value) + " entries");
    return true;
}

bool Scanner::name(const std::string& field, std::uint64_t bytes_max, std::uint64_t& offset, std::uint32_t& bytes) {
    const std::uint64_t at = position_;
    std::uint64_t length = 0;
    if (!read([&] { return "the length of " + field; }, length)) return false;
    if (length == 0) return refuse(Defect::Kind::DAMAGED, "the length of " + field, at, "is 0: a name cannot be empty");
    if (length > bytes_max)
        return refuse(Defect::Kind::DAMAGED, "the length of " + field, at,
                      "is " + number(length) + "; at most " + number(bytes_max) + " bytes are allowed");
    if (length > remaining()) return refuse_cut("the length of " + field, at, "a name of " + number(length) + " bytes");
    if (!is_printable(bytes_.text(position_, length)))
        return refuse(Defect::Kind::DAMAGED, "the name of " + field, position_,
                      "holds control characters or is not UTF-8");
    offset = position_;
    bytes = static_cast<std::uint32_t>(length);
    position_ += length;
    return true;
}

bool Scanner::value_type(const std::string& field, ValueType& type) {
    const std::uint64_t offset = position_;
    std::uint32_t id = 0;
    if (!read([&] { return "the type of " + field; }, id)) return false;
    if (id >= VALUE_TYPE_COUNT)
        return refuse(Defect::Kind::DAMAGED, "the type of " + field, offset,
                      "is " + number(id) + "; value types go from 0 to " + number(VALUE_TYPE_COUNT - 1));
    type = static_cast<ValueType>(id);
    return true;
}

bool Scanner::value(const std::string& field, Value& value) {
    if (!value_type(field, value.type)) return false;
    if (value.type == ValueType::ARRAY) return array(field, 1, value);
    value.count = 1;
    value.offset = position_;
    if (value.type == ValueType::STRING) {
        if (!read([&] { return "the length of " + field; }, value.count)) return false;
        if (value.count > remaining())
            return refuse_cut("the length of " + field, value.offset, "a string of " + number(value.count) + " bytes");
        value.offset = position_;
        value.end = position_ += value.count;
        return true;
    }
    const std::uint64_t size = value_bytes(value.type);
    if (size > remaining()) return refuse_cut(field, position_, number(size) + " bytes");
    if (value.type == ValueType::BOOL && !booleans(field, position_, 1)) return false;
    value.end = position_ += size;
    return true;
}

bool Scanner::array(const std::string& field, unsigned depth, Value& value) {
    const std::uint64_t type_offset = position_;
    value.type = ValueType::ARRAY;
    if (depth > ARRAY_DEPTH_MAX)
        return refuse(Defect::Kind::LIMIT, field, type_offset,
                      "nests arrays deeper than " + number(ARRAY_DEPTH_MAX) + " levels");
    if (!value_type("the elements of " + field, value.element_type)) return false;
    const std::uint64_t count_offset = position_;
    const auto count_field = [&] { return "the element count of " + field; };
    if (!read(count_field, value.count)) return false;
    value.offset = position_;
    const std::uint64_t size = value_bytes(value.element_type);
    if (value.count > remaining() / element_bytes_min(value.element_type))
        return refuse_cut(count_field(), count_offset,
                          number(value.count) + " elements of at least " +
                              number(element_bytes_min(value.element_type)) + " bytes");
    if (value.count > ARRAY_ELEMENTS_MAX)
        return refuse(Defect::Kind::LIMIT, count_field(), count_offset,
                      "is " + number(value.count) + "; at most " + number(ARRAY_ELEMENTS_MAX) + " are read");
    if (value.element_type == ValueType::STRING) {
        if (!strings(field, value.count, nullptr, nullptr)) return false;
    } else if (value.element_type == ValueType::ARRAY) {
        Value element;
        for (std::uint64_t index = 0; index < value.count; ++index)
            if (!array(field, depth + 1, element)) return false;
    } else {
        if (value.element_type == ValueType::BOOL && !booleans(field, position_, value.count)) return false;
        position_ += value.count * size;  // cannot wrap: the count was held against what remains
    }
    value.end = position_;
    return true;
}

bool Scanner::booleans(const std::string& field, std::uint64_t offset, std::uint64_t count) {
    for (std::uint64_t index = 0; index < count; ++index)
        if (bytes_.data[offset + index] > 1)
            return refuse(Defect::Kind::DAMAGED, field, offset + index,
                          "is a boolean of value " + number(bytes_.data[offset + index]) + "; 0 and 1 are allowed");
    return true;
}

bool Scanner::strings(const std::string& field, std::uint64_t count, std::uint64_t* offsets, std::uint32_t* lengths) {
    for (std::uint64_t index = 0; index < count; ++index) {
        const std::uint64_t offset = position_;
        if (remaining() < 8) return refuse_cut("the length of string " + number(index) + " of " + field, offset, "8 bytes");
        const std::uint64_t length = load<std::uint64_t>(position_);
        position_ += 8;
        if (length > remaining())
            return refuse_cut("the length of string " + number(index) + " of " + field, offset,
                              "a string of " + number(length) + " bytes");
        if (offsets != nullptr) {
            offsets[index] = position_;
            lengths[index] = static_cast<std::uint32_t>(length);  // a header is shorter than 2^32
        }
        position_ += length;
    }
    return true;
}

bool Scanner::key_values(std::uint64_t count, Header& header) {
    for (std::uint64_t index = 0; index < count; ++index) {
        KeyValue entry;
        if (!name("key " + number(index), KEY_BYTES_MAX, entry.key_offset, entry.key_bytes)) return false;
        const std::string field = "the value of " + quoted(bytes_.text(entry.key_offset, entry.key_bytes));
        if (!value(field, entry.value)) return false;
        header.key_values.push_back(entry);
    }
    const auto key = [&](std::uint32_t position) {
        return bytes_.text(header.key_values[position].key_offset, header.key_values[position].key_bytes);
    };
    const auto clash = index_names(header.key_values.size(), key, header.key_index);
    return !clash || refuse_clash(*clash, "the key " + quoted(key(clash->later)),
                                  header.key_values[clash->later].key_offset,
                                  header.key_values[clash->earlier].key_offset);
}

bool Scanner::alignment(Header& header) {
    constexpr std::string_view KEY = "general.alignment";
    const auto index = find_key(bytes_, header, KEY);
    if (!index) return true;
    const Value& value = header.key_values[*index].value;
    if (value.type != ValueType::U32)
        return refuse(Defect::Kind::DAMAGED, quoted(KEY), value.offset,
                      "has value type " + number(static_cast<std::uint32_t>(value.type)) + "; it must be 4, a u32");
    const auto alignment = load<std::uint32_t>(value.offset);
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return refuse(Defect::Kind::DAMAGED, quoted(KEY), value.offset,
                      "is " + number(alignment) + "; it must be a power of two from 8 to " + number(ALIGNMENT_MAX));
    header.alignment = alignment;
    return true;
}

bool Scanner::tensors(std::uint64_t count, const BlockSizes& blocks, Header& header) {
    for (std::uint64_t index = 0; index < count; ++index) {
        Tensor entry;
        if (!name("tensor " + number(index), TENSOR_NAME_BYTES_MAX, entry.name_offset, entry.name_bytes)) return false;
        if (!tensor(tensor_field(entry), blocks, entry)) return false;
        header.tensors.push_back(entry);
    }
    return true;
}

bool Scanner::tensor(const std::string& field, const BlockSizes& blocks, Tensor& tensor) {
    std::uint64_t elements = 0;
    if (!dimensions(field, tensor, elements)) return false;
    const std::uint64_t type_offset = position_;
    if (!read([&] { return "the type of " + field; }, tensor.type)) return false;
    if (tensor.type >= blocks.count || blocks.elements[tensor.type] == 0)
        return refuse(Defect::Kind::UNSUPPORTED, "the type of " + field, type_offset,
                      "is " + number(tensor.type) + ", which is no tensor type that we know");
    const std::uint64_t block_elements = blocks.elements[tensor.type], block_bytes = blocks.bytes[tensor.type];
    if (tensor.shape[0] % block_elements != 0)
        return refuse(Defect::Kind::DAMAGED, "dimension 0 of " + field, type_offset - 8 * tensor.dimension_count,
                      "is " + number(tensor.shape[0]) + "; rows of tensor type " + number(tensor.type) +
                          " are multiples of " + number(block_elements));
    if (elements / block_elements > ELEMENT_COUNT_MAX / block_bytes)
        return refuse(Defect::Kind::DAMAGED, "the size of " + field, type_offset, "is more than 2^63 bytes");
    tensor.row_bytes = tensor.shape[0] / block_elements * block_bytes;
    tensor.bytes = elements / block_elements * block_bytes;
    tensor.offset_field = position_;
    return read([&] { return "the offset of " + field; }, tensor.offset);
}

bool Scanner::dimensions(const std::string& field, Tensor& tensor, std::uint64_t& elements) {
    const std::uint64_t count_offset = position_;
    const auto count_field = [&] { return "the dimension count of " + field; };
    if (!read(count_field, tensor.dimension_count)) return false;
    if (tensor.dimension_count < 1 || tensor.dimension_count > DIMENSIONS_MAX)
        return refuse(Defect::Kind::DAMAGED, count_field(), count_offset,
                      "is " + number(tensor.dimension_count) + "; 1 to " + number(DIMENSIONS_MAX) + " are allowed");
    elements = 1;
    for (std::uint32_t index = 0; index < tensor.dimension_count; ++index) {
        const std::uint64_t offset = position_;
        const auto dimension_field = [&] { return "dimension " + number(index) + " of " + field; };
        std::uint64_t& dimension = tensor.shape[index];
        if (!read(dimension_field, dimension)) return false;
        if (dimension == 0) return refuse(Defect::Kind::DAMAGED, dimension_field(), offset, "is 0");
        if (dimension > ELEMENT_COUNT_MAX / elements)
            return refuse(Defect::Kind::DAMAGED, dimension_field(), offset,
                          "is " + number(dimension) + ", which makes more than 2^63 elements");
        elements *= dimension;
    }
    return true;
}

// Turns the tensors' offsets into offsets from the start of the file, and holds them against its end.
bool Scanner::place(std::uint64_t file_bytes, Header& header) {
    header.model_end = header.header_bytes;
    for (Tensor& tensor : header.tensors) {
        const auto field = [&] { return "the offset of " + tensor_field(tensor); };
        if (tensor.offset % header.alignment != 0)
            return refuse(Defect::Kind::DAMAGED, field(), tensor.offset_field,
                          "is " + number(tensor.offset) + ", not a multiple of the alignment " + number(header.alignment));
        const std::uint64_t available = file_bytes > header.data_offset ? file_bytes - header.data_offset : 0;
        if (tensor.offset > available || tensor.bytes > available - tensor.offset)
            return refuse(Defect::Kind::DAMAGED, field(), tensor.offset_field,
                          "is " + number(tensor.offset) + ", and the tensor has " + number(tensor.bytes) +
                              " bytes, but the file ends " + number(available) + " bytes into its data section");
        tensor.offset += header.data_offset;
        header.model_end = std::max(header.model_end, tensor.offset + tensor.bytes);
    }
    return true;
}

bool Scanner::unique_tensor_names(const Header& header) {
    const auto name = [&](std::uint32_t position) {
        return bytes_.text(header.tensors[position].name_offset, header.tensors[position].name_bytes);
    };
    std::vector<IndexedName> index;
    const auto clash = index_names(header.tensors.size(), name, index);
    return !clash || refuse_clash(*clash, "the name of " + tensor_field(header.tensors[clash->later]),
                                  header.tensors[clash->later].name_offset,
                                  header.tensors[clash->earlier].name_offset);
}

bool Scanner::disjoint_tensors(const Header& header) {
    std::vector<const Tensor*> order;
    order.reserve(header.tensors.size());
    for (const Tensor& tensor : header.tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
        return a->offset != b->offset ? a->offset < b->offset : a->offset_field < b->offset_field;
    });
    for (std::size_t index = 1; index < order.size(); ++index) {
        const Tensor& earlier = *order[index - 1];
        const Tensor& later = *order[index];
        if (earlier.offset + earlier.bytes > later.offset)
            return refuse(Defect::Kind::DAMAGED, "the offset of " + tensor_field(later), later.offset_field,
                          "places it at " + number(later.offset) + ", inside " + tensor_field(earlier) + " (" +
                              number(earlier.offset) + " to " + number(earlier.offset + earlier.bytes) + ")");
    }
    return true;
}

}  // namespace

std::optional<Defect> scan_gguf(Bytes bytes, std::uint64_t file_bytes, bool allows_invalid_magic,
                                const BlockSizes& blocks, Header& header) {
    Scanner scanner(bytes);
    scanner.scan(file_bytes, allows_invalid_magic, blocks, header);
    return std::move(scanner.defect);
}

std::optional<Defect> locate_strings(Bytes bytes, std::uint64_t offset, std::uint64_t count, std::uint64_t* offsets,
                                     std::uint32_t* lengths) {
    Scanner scanner(bytes, offset);
    scanner.strings("the array at offset " + number(offset), count, offsets, lengths);
    return std::move(scanner.defect);
}

std::optional<Defect> locate_array(Bytes bytes, std::uint64_t offset, Value& value) {
    Scanner scanner(bytes, offset);
    scanner.array("the array at offset " + number(offset), 1, value);
    return std::move(scanner.defect);
}

std::optional<std::uint32_t> find_key(Bytes bytes, const Header& header, std::string_view key) {
    const std::uint64_t hash = hash_of(key);
    auto found = std::lower_bound(header.key_index.begin(), header.key_index.end(), hash,
                                  [](const IndexedName& entry, std::uint64_t wanted) { return entry.hash < wanted; });
    for (; found != header.key_index.end() && found->hash == hash; ++found) {
        const KeyValue& entry = header.key_values[found->position];
        if (bytes.text(entry.key_offset, entry.key_bytes) == key) return found->position;
    }
    return std::nullopt;
}

}  // namespace magnitude::formats
