// magnitude_service.snapshot._snapshot. The only file here that knows Python; its signatures are in ../_snapshot.pyi.
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "crc32c.h"
#include "segment.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude::snapshot {
namespace {

// Below this taking the lock back may cost more than the work: 64 KiB are some microseconds.
constexpr Py_ssize_t RELEASE_BYTES = 64 << 10;

// The bytes of any object that has them in a row, for as long as this lives.
class Buffer {
  public:
    explicit Buffer(const nb::handle& object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
    Py_ssize_t bytes() const { return view_.len; }

  private:
    Py_buffer view_{};
};

std::uint32_t extended(AdvanceCrc32c advance, const nb::handle& data, std::uint32_t crc) {
    const Buffer buffer(data);
    const auto bytes = static_cast<std::size_t>(buffer.bytes());
    if (buffer.bytes() < RELEASE_BYTES) return ~advance(~crc, buffer.data(), bytes);
    nb::gil_scoped_release release;
    return ~advance(~crc, buffer.data(), bytes);
}

std::uint32_t crc32c(const nb::handle& data, std::uint32_t crc) {
    return extended(best_crc32c(), data, crc);
}

nb::tuple crc32c_of_pieces(const nb::handle& data, std::size_t piece_bytes) {
    if (piece_bytes == 0) throw nb::value_error("a piece has a byte or more");
    const AdvanceCrc32c advance = best_crc32c();
    const Buffer buffer(data);
    const auto bytes = static_cast<std::size_t>(buffer.bytes());
    std::vector<std::uint32_t> pieces;
    std::uint32_t whole = 0;
    {
        nb::gil_scoped_release release;
        for (std::size_t begin = 0; begin < bytes; begin += piece_bytes) {
            const std::size_t count = std::min(piece_bytes, bytes - begin);
            pieces.push_back(~advance(~std::uint32_t{0}, buffer.data() + begin, count));
            whole = joined_crc32c(whole, pieces.back(), count);
        }
    }
    return nb::make_tuple(whole, pieces);
}

nb::list crc32c_implementations() {
    Crc32c found[IMPLEMENTATIONS_MAX];
    nb::list names;
    for (int index = 0, count = supported_crc32c(found); index < count; ++index) names.append(found[index].name);
    return names;
}

std::uint32_t crc32c_by(const std::string& name, const nb::handle& data, std::uint32_t crc) {
    Crc32c found[IMPLEMENTATIONS_MAX];
    for (int index = 0, count = supported_crc32c(found); index < count; ++index)
        if (name == found[index].name) return extended(found[index].advance, data, crc);
    throw nb::value_error("this machine has no such implementation");
}

// fstat(2) without the twenty numbers that os.fstat makes of it.
bool is_linked(int descriptor) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return status.st_nlink > 0;
}

// sync_file_range(2), where there is one, told to begin and not to wait: it takes note of no error then.
void start_writeback(int descriptor, std::int64_t offset, std::int64_t bytes) {
#ifdef SYNC_FILE_RANGE_WRITE
    sync_file_range(descriptor, offset, bytes, SYNC_FILE_RANGE_WRITE);
#endif
}

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// Attributes of record.Content, a tuple: name, data, nbytes, crc.
constexpr Py_ssize_t NAME = 0, DATA = 1, NBYTES = 2, CRC = 3;

nb::handle item(const nb::handle& tuple, Py_ssize_t index) { return PyTuple_GET_ITEM(tuple.ptr(), index); }

nb::tuple encode_body(const nb::bytes& header, const std::vector<nb::tuple>& contents) {
    std::string envelope("\x0a");
    append_varint(envelope, header.size());
    envelope.append(header.c_str(), header.size());
    std::vector<std::size_t> offsets_at;
    for (const nb::tuple& content : contents) {
        const EncodedBlob blob = encode_blob(nb::cast<std::string_view>(item(content, NAME)),
                                             nb::cast<std::uint64_t>(item(content, NBYTES)),
                                             nb::cast<std::uint32_t>(item(content, CRC)));
        offsets_at.push_back(envelope.size() + blob.offset_at);
        envelope += blob.bytes;
    }
    nb::list parts;
    parts.append(nb::none());
    std::uint64_t position = HEADER_BYTES + envelope.size();
    std::size_t index = 0;
    for (const nb::tuple& content : contents) {
        const auto content_bytes = nb::cast<std::uint64_t>(item(content, NBYTES));
        const std::string glue = encode_glue(position, content_bytes);
        position += glue.size();
        store_u64(envelope.data() + offsets_at[index++], position);
        position += content_bytes;
        parts.append(bytes_of(glue));
        parts.append(item(content, DATA));
    }
    parts[0] = bytes_of(envelope);
    return nb::make_tuple(nb::tuple(parts), position - HEADER_BYTES);
}

nb::list segment_parts(const nb::tuple& header, const nb::tuple& body_parts) {
    const auto number = [&](Py_ssize_t index) { return nb::cast<std::uint64_t>(item(header, index)); };
    const SegmentHeader encoded{
        static_cast<std::uint16_t>(number(0)), number(1), number(2), number(3), number(4), number(5),
        static_cast<std::uint32_t>(number(6)), static_cast<std::uint32_t>(number(7)), number(8), number(9), number(10),
        number(11), nb::cast<std::string_view>(item(header, 12))};
    nb::list parts;
    std::string joined = encode_header(encoded);
    for (const nb::handle part : body_parts) {
        const Buffer buffer(part);
        const auto bytes = static_cast<std::size_t>(buffer.bytes());
        if (bytes < PAGE_BYTES) {
            joined.append(reinterpret_cast<const char*>(buffer.data()), bytes);
            continue;
        }
        if (!joined.empty()) parts.append(bytes_of(joined));
        parts.append(part);
        joined.clear();
    }
    parts.append(bytes_of(joined + encode_end(encoded)));
    return parts;
}

}  // namespace
}  // namespace magnitude::snapshot

NB_MODULE(_snapshot, module) {
    using namespace magnitude::snapshot;
    module.def("crc32c", &crc32c, "data"_a, "crc"_a = 0);
    module.def("crc32c_of_pieces", &crc32c_of_pieces, "data"_a, "piece_bytes"_a);
    module.def("crc32c_implementations", &crc32c_implementations);
    module.def("is_linked", &is_linked, "descriptor"_a);
    module.def("start_writeback", &start_writeback, "descriptor"_a, "offset"_a, "bytes"_a,
               nb::call_guard<nb::gil_scoped_release>());
    module.def("encode_body", &encode_body, "header"_a, "contents"_a);
    module.def("segment_parts", &segment_parts, "header"_a, "body_parts"_a);
    module.def("crc32c_by", &crc32c_by, "name"_a, "data"_a, "crc"_a = 0);
}
