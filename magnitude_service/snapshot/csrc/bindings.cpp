// magnitude_service.snapshot._snapshot. The only file here that knows Python; its signatures are in ../_snapshot.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "crc32c.h"

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
    static const AdvanceCrc32c best = [] {
        Crc32c found[IMPLEMENTATIONS_MAX];
        supported_crc32c(found);
        return found[0].advance;
    }();
    return extended(best, data, crc);
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

}  // namespace
}  // namespace magnitude::snapshot

NB_MODULE(_snapshot, module) {
    using namespace magnitude::snapshot;
    module.def("crc32c", &crc32c, "data"_a, "crc"_a = 0);
    module.def("crc32c_implementations", &crc32c_implementations);
    module.def("crc32c_by", &crc32c_by, "name"_a, "data"_a, "crc"_a = 0);
}
