// magnitude_service.formats._formats. The only file here that knows Python; its signatures are in ../_formats.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <new>

#include "gguf_scan.h"
#include "mapping.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude::formats {
namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using NumpyArray = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

const char* const DEFECT_KINDS[] = {"NOT_GGUF", "FOREIGN_BYTE_ORDER", "VERSION_1", "UNKNOWN_VERSION",
                                    "DAMAGED",  "LIMIT",              "UNSUPPORTED"};

nb::str decoded(std::string_view bytes) {
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

Bytes bytes_of(const Array<std::uint8_t>& data) { return {data.data(), data.size()}; }

// The result of a scan beside the buffer that it points into.
class Scan {
  public:
    Scan(Array<std::uint8_t> data, std::uint64_t file_bytes, bool allows_invalid_magic,
         const Array<std::uint32_t>& block_elements, const Array<std::uint32_t>& block_bytes)
        : data_(std::move(data)) {
        const auto types = static_cast<std::uint32_t>(std::min(block_elements.size(), block_bytes.size()));
        const BlockSizes blocks{block_elements.data(), block_bytes.data(), types};
        nb::gil_scoped_release release;
        defect_ = scan_gguf(bytes_of(data_), file_bytes, allows_invalid_magic, blocks, header_);
    }

    const std::optional<Defect>& defect() const { return defect_; }
    const Header& header() const { return header_; }

    nb::list tensors() const {
        nb::list rows;
        for (const Tensor& tensor : header_.tensors) {
            nb::object shape = nb::steal(PyTuple_New(tensor.dimension_count));
            for (std::uint32_t index = 0; index < tensor.dimension_count; ++index)
                PyTuple_SET_ITEM(shape.ptr(), index, PyLong_FromUnsignedLongLong(tensor.shape[index]));
            rows.append(nb::make_tuple(decoded(text(tensor.name_offset, tensor.name_bytes)), tensor.type, shape,
                                       tensor.offset, tensor.bytes, tensor.row_bytes));
        }
        return rows;
    }

    nb::list keys() const {
        nb::list names;
        for (const KeyValue& entry : header_.key_values) names.append(decoded(text(entry.key_offset, entry.key_bytes)));
        return names;
    }

    std::optional<Value> find(const nb::str& key) const {
        Py_ssize_t size = 0;
        const char* const utf8 = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
        if (utf8 == nullptr) {  // a lone surrogate: no key has one
            PyErr_Clear();
            return std::nullopt;
        }
        const auto index = find_key(bytes_of(data_), header_, {utf8, static_cast<std::size_t>(size)});
        if (!index) return std::nullopt;
        return header_.key_values[*index].value;
    }

    std::size_t key_count() const { return header_.key_values.size(); }

  private:
    std::string_view text(std::uint64_t offset, std::uint64_t bytes) const { return bytes_of(data_).text(offset, bytes); }

    Array<std::uint8_t> data_;
    Header header_;
    std::optional<Defect> defect_;
};

template <typename T>
NumpyArray<T> owned(std::unique_ptr<T[]> values, std::size_t count) {
    T* const data = values.release();
    const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
    return NumpyArray<T>(data, {count}, owner);
}

nb::object string_table(const Array<std::uint8_t>& data, std::uint64_t offset, std::uint64_t count) {
    if (count > ARRAY_ELEMENTS_MAX) throw nb::value_error("the scan admits no such count");
    std::unique_ptr<std::uint64_t[]> offsets(new std::uint64_t[count]);
    std::unique_ptr<std::uint32_t[]> lengths(new std::uint32_t[count]);
    std::optional<Defect> defect;
    {
        nb::gil_scoped_release release;
        defect = locate_strings(bytes_of(data), offset, count, offsets.get(), lengths.get());
    }
    if (defect) return nb::cast(*defect);
    return nb::make_tuple(owned(std::move(offsets), count), owned(std::move(lengths), count));
}

nb::object array_at(const Array<std::uint8_t>& data, std::uint64_t offset) {
    Value value;
    if (auto defect = locate_array(bytes_of(data), offset, value)) return nb::cast(*defect);
    return nb::cast(value);
}

// A mapping, or the errno that says why there is none.
template <typename Make>
nb::object made(Make make) {
    auto mapping = std::make_unique<Mapping>();
    int status = 0;
    {
        nb::gil_scoped_release release;
        status = make(*mapping);
    }
    if (status != 0) return nb::int_(status);
    return nb::cast(mapping.release(), nb::rv_policy::take_ownership);
}

template <typename T>
NumpyArray<T> view(const nb::handle& self) {
    const Mapping& mapping = nb::cast<const Mapping&>(self);
    return NumpyArray<T>(mapping.data(), {mapping.bytes()}, self);
}

}  // namespace
}  // namespace magnitude::formats

NB_MODULE(_formats, module) {
    using namespace magnitude::formats;
    nb::set_leak_warnings(false);  // an interpreter that exits with a model mapped has leaked nothing
    module.attr("HEADER_BYTES_MAX") = HEADER_BYTES_MAX;
    module.attr("KEY_VALUES_MAX") = KEY_VALUES_MAX;
    module.attr("TENSORS_MAX") = TENSORS_MAX;
    module.attr("KEY_BYTES_MAX") = KEY_BYTES_MAX;
    module.attr("TENSOR_NAME_BYTES_MAX") = TENSOR_NAME_BYTES_MAX;
    module.attr("ARRAY_ELEMENTS_MAX") = ARRAY_ELEMENTS_MAX;
    module.attr("ARRAY_DEPTH_MAX") = ARRAY_DEPTH_MAX;
    module.attr("DIMENSIONS_MAX") = DIMENSIONS_MAX;
    module.attr("ALIGNMENT_MAX") = ALIGNMENT_MAX;

    nb::class_<Defect>(module, "Defect")
        .def_prop_ro("kind", [](const Defect& defect) { return DEFECT_KINDS[static_cast<int>(defect.kind)]; })
        .def_prop_ro("field", [](const Defect& defect) { return decoded(defect.field); })
        .def_ro("offset", &Defect::offset)
        .def_prop_ro("problem", [](const Defect& defect) { return decoded(defect.problem); });

    nb::class_<Value>(module, "Value")
        .def_prop_ro("type", [](const Value& value) { return static_cast<std::uint32_t>(value.type); })
        .def_prop_ro("element_type", [](const Value& value) { return static_cast<std::uint32_t>(value.element_type); })
        .def_ro("offset", &Value::offset)
        .def_ro("count", &Value::count)
        .def_ro("end", &Value::end);

    nb::class_<Scan>(module, "Scan")
        .def(nb::init<Array<std::uint8_t>, std::uint64_t, bool, const Array<std::uint32_t>&,
                      const Array<std::uint32_t>&>(),
             "data"_a.noconvert(), nb::kw_only(), "file_bytes"_a, "allows_invalid_magic"_a,
             "block_elements"_a.noconvert(), "block_bytes"_a.noconvert())
        .def_prop_ro("defect", &Scan::defect)
        .def_prop_ro("version", [](const Scan& scan) { return scan.header().version; })
        .def_prop_ro("alignment", [](const Scan& scan) { return scan.header().alignment; })
        .def_prop_ro("header_bytes", [](const Scan& scan) { return scan.header().header_bytes; })
        .def_prop_ro("data_offset", [](const Scan& scan) { return scan.header().data_offset; })
        .def_prop_ro("model_end", [](const Scan& scan) { return scan.header().model_end; })
        .def_prop_ro("key_count", &Scan::key_count)
        .def("tensors", &Scan::tensors)
        .def("keys", &Scan::keys)
        .def("find", &Scan::find, "key"_a);

    module.def("string_table", &string_table, "data"_a.noconvert(), "offset"_a, "count"_a);
    module.def("array_at", &array_at, "data"_a.noconvert(), "offset"_a);

    nb::class_<Mapping>(module, "Mapping")
        .def_prop_ro("is_damaged", &Mapping::is_damaged)
        .def_prop_ro("address", [](const Mapping& mapping) { return reinterpret_cast<std::uintptr_t>(mapping.data()); })
        .def_prop_ro("view", [](nb::handle_t<Mapping> self) { return view<const std::uint8_t>(self); })
        .def_prop_ro("writable_view", [](nb::handle_t<Mapping> self) { return view<std::uint8_t>(self); })
        .def("trim", &Mapping::trim, "bytes"_a)
        .def("seal", &Mapping::seal)
        .def("lock", &Mapping::lock, nb::call_guard<nb::gil_scoped_release>())
        .def("populate", &Mapping::populate, nb::call_guard<nb::gil_scoped_release>());
    module.def(
        "map_file",
        [](int descriptor, std::size_t bytes) {
            return made([&](Mapping& mapping) { return mapping.map_file(descriptor, bytes); });
        },
        "descriptor"_a, "bytes"_a);
    module.def(
        "allocate", [](std::size_t bytes) { return made([&](Mapping& mapping) { return mapping.allocate(bytes); }); },
        "bytes"_a);
}
