// magnitude_service.text._text. The only file here that knows Python; its signatures are in ../_text.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <new>

#include "byte_pair_tokenizer.h"
#include "unicode_classes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude::text {
namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void raise(const char* class_name, const std::string& message) {
    const nb::object error_class = nb::module_::import_("magnitude_service.errors").attr(class_name);
    const nb::object error = error_class(message);
    PyErr_SetObject(error_class.ptr(), error.ptr());
    throw nb::python_error();
}

void raise_if(const std::optional<Defect>& defect) {
    if (!defect) return;
    switch (defect->kind) {
        case Defect::Kind::INTEGRITY: raise("IntegrityError", defect->message);
        case Defect::Kind::UNSUPPORTED_MODEL: raise("UnsupportedModelError", defect->message);
        case Defect::Kind::INVALID_REQUEST: raise("InvalidRequestError", defect->message);
    }
}

// Runs `work` without the interpreter lock.
template <typename Work>
void without_lock(const char* what, Work work) {
    bool is_out_of_memory = false;
    {
        nb::gil_scoped_release release;
        try {
            work();
        } catch (const std::bad_alloc&) {
            is_out_of_memory = true;
        }
    }
    if (is_out_of_memory) raise("ExhaustedError", std::string("There is no memory to ") + what + ".");
}

StringTable string_table(const char* key, const Array<std::uint8_t>& data, const Array<std::uint64_t>& offsets,
                         const Array<std::uint32_t>& lengths) {
    if (offsets.size() != lengths.size())
        raise("IntegrityError", std::string(key) + " has " + std::to_string(offsets.size()) + " offsets but " +
                                    std::to_string(lengths.size()) + " lengths.");
    if (offsets.size() > TOKENS_MAX)
        raise("IntegrityError", std::string(key) + " has " + std::to_string(offsets.size()) + " entries; at most " +
                                    std::to_string(TOKENS_MAX) + " are supported.");
    return {key,           reinterpret_cast<const char*>(data.data()), data.size(), offsets.data(), lengths.data(),
            static_cast<std::uint32_t>(offsets.size())};
}

// The tokenizer beside the Python arrays whose memory it reads.
class BoundTokenizer {
  public:
    BoundTokenizer(Array<std::uint8_t> data, Array<std::uint64_t> token_offsets, Array<std::uint32_t> token_lengths,
                   const Array<std::uint8_t>& token_types, const Array<std::uint8_t>& merge_data,
                   const Array<std::uint64_t>& merge_offsets, const Array<std::uint32_t>& merge_lengths,
                   std::string pre_tokenizer, const nb::list& control_texts)
        : data_(std::move(data)), offsets_(std::move(token_offsets)), lengths_(std::move(token_lengths)) {
        BytePairTokenizer::Tables tables;
        tables.tokens = string_table("tokenizer.ggml.tokens", data_, offsets_, lengths_);
        tables.merges = string_table("tokenizer.ggml.merges", merge_data, merge_offsets, merge_lengths);
        tables.types = token_types.data();
        tables.pre_tokenizer = std::move(pre_tokenizer);
        if (token_types.size() != tables.tokens.count)
            raise("IntegrityError", "tokenizer.ggml.token_type has " + std::to_string(token_types.size()) +
                                        " entries for " + std::to_string(tables.tokens.count) + " tokens.");
        for (const nb::handle text : control_texts) {
            const nb::bytes bytes = nb::cast<nb::bytes>(text);
            tables.control_texts.emplace_back(bytes.c_str(), bytes.size());
        }
        std::optional<Defect> defect;
        without_lock("index the vocabulary", [&] { defect = tokenizer_.build(tables); });
        raise_if(defect);
    }

    nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> encode(const nb::list& segments) const {
        std::string text;
        std::vector<Segment> cuts;
        for (const nb::handle segment : segments) {
            const auto [bytes, is_trusted] = nb::cast<std::pair<nb::bytes, bool>>(segment);
            if (bytes.size() > TEXT_BYTES_MAX - text.size())
                raise("InvalidRequestError",
                      "The text is longer than " + std::to_string(TEXT_BYTES_MAX) + " bytes, the most that is encoded.");
            text.append(bytes.c_str(), bytes.size());
            cuts.push_back({text.size(), is_trusted});
        }
        auto ids = std::make_unique<std::vector<std::int32_t>>();
        without_lock("encode the text", [&] { tokenizer_.encode(text, cuts, *ids); });
        std::vector<std::int32_t>* const owned = ids.release();
        const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<std::int32_t>*>(p); });
        return {owned->data(), {owned->size()}, owner};
    }

    nb::bytes decode(const Array<std::int64_t>& ids, bool render_special) const {
        const Vocabulary& vocabulary = tokenizer_.vocabulary();
        std::string out;
        for (std::size_t index = 0; index < ids.size(); ++index)
            vocabulary.append_bytes(checked(ids.data()[index], index), render_special, out);
        return nb::bytes(out.data(), out.size());
    }

    nb::bytes token_text(std::int64_t id) const {
        const std::string_view text = tokenizer_.vocabulary().text(checked(id, 0));
        return nb::bytes(text.data(), text.size());
    }

    TokenType token_type(std::int64_t id) const { return tokenizer_.vocabulary().type(checked(id, 0)); }
    bool is_control(std::int64_t id) const { return tokenizer_.vocabulary().is_control(checked(id, 0)); }

    std::optional<std::uint32_t> find(const nb::bytes& text) const {
        const std::uint32_t id = tokenizer_.vocabulary().find({text.c_str(), text.size()});
        return id == NO_TOKEN ? std::nullopt : std::optional(id);
    }

    bool adds_bos() const { return tokenizer_.pre_tokenizer().adds_bos; }
    std::uint32_t vocabulary_size() const { return tokenizer_.vocabulary().size(); }
    std::uint64_t token_bytes_max() const { return tokenizer_.vocabulary().token_bytes_max(); }
    std::uint64_t index_bytes() const { return tokenizer_.index_bytes(); }

  private:
    std::uint32_t checked(std::int64_t id, std::size_t index) const {
        if (id >= 0 && id < vocabulary_size()) return static_cast<std::uint32_t>(id);
        raise("InvalidRequestError", "Token id " + std::to_string(id) + " at index " + std::to_string(index) +
                                         " is out of range: the vocabulary has ids 0 to " +
                                         std::to_string(std::int64_t{vocabulary_size()} - 1) + ".");
    }

    Array<std::uint8_t> data_;
    Array<std::uint64_t> offsets_;
    Array<std::uint32_t> lengths_;
    BytePairTokenizer tokenizer_;
};

nb::tuple pre_tokenizer_names() {
    nb::list names;
    for (std::size_t index = 0; index < PRE_TOKENIZER_COUNT; ++index) names.append(PRE_TOKENIZERS[index].name);
    return nb::tuple(names);
}

// For tests: what the pre-tokenizer makes of a text.
nb::list pieces(const std::string& pre_tokenizer, const nb::bytes& text) {
    const PreTokenizer* const found = pre_tokenizer_named(pre_tokenizer);
    if (found == nullptr) raise("UnsupportedModelError", "There is no pre-tokenizer '" + pre_tokenizer + "'.");
    nb::list out;
    const auto* at = reinterpret_cast<const std::uint8_t*>(text.c_str());
    for (const auto* const end = at + text.size(); at < end;) {
        const auto* const next = found->next_piece(at, end);
        out.append(nb::bytes(reinterpret_cast<const char*>(at), static_cast<std::size_t>(next - at)));
        at = next;
    }
    return out;
}

// For tests: the class of every code point in [0, count).
nb::bytes classes_of_code_points(std::uint32_t count) {
    std::string classes(count, '\0');
    for (std::uint32_t code = 0; code < count; ++code) classes[code] = static_cast<char>(class_of(code));
    return nb::bytes(classes.data(), classes.size());
}

}  // namespace
}  // namespace magnitude::text

NB_MODULE(_text, module) {
    using namespace magnitude::text;
    nb::set_leak_warnings(false);  // an interpreter that exits with a tokenizer in use has leaked nothing
    module.attr("UNICODE_VERSION") = UNICODE_VERSION;
    module.attr("SPECIAL_TOKEN_BYTES_MAX") = SPECIAL_TOKEN_BYTES_MAX;
    module.attr("PRE_TOKENIZERS") = pre_tokenizer_names();
    module.def("classes_of_code_points", &classes_of_code_points, "count"_a);
    module.def("pieces", &pieces, "pre_tokenizer"_a, "text"_a);
    nb::enum_<TokenType>(module, "TokenType")
        .value("UNDEFINED", TokenType::UNDEFINED)
        .value("NORMAL", TokenType::NORMAL)
        .value("UNKNOWN", TokenType::UNKNOWN)
        .value("CONTROL", TokenType::CONTROL)
        .value("USER_DEFINED", TokenType::USER_DEFINED)
        .value("UNUSED", TokenType::UNUSED)
        .value("BYTE", TokenType::BYTE);
    nb::class_<BoundTokenizer>(module, "BytePairTokenizer")
        .def(nb::init<Array<std::uint8_t>, Array<std::uint64_t>, Array<std::uint32_t>, const Array<std::uint8_t>&,
                      const Array<std::uint8_t>&, const Array<std::uint64_t>&, const Array<std::uint32_t>&, std::string,
                      const nb::list&>(),
             nb::kw_only(), "data"_a.noconvert(), "token_offsets"_a.noconvert(), "token_lengths"_a.noconvert(),
             "token_types"_a.noconvert(), "merge_data"_a.noconvert(), "merge_offsets"_a.noconvert(),
             "merge_lengths"_a.noconvert(), "pre_tokenizer"_a, "control_texts"_a)
        .def("encode", &BoundTokenizer::encode, "segments"_a)
        .def("decode", &BoundTokenizer::decode, "ids"_a.noconvert(), "render_special"_a)
        .def("token_text", &BoundTokenizer::token_text, "id"_a)
        .def("token_type", &BoundTokenizer::token_type, "id"_a)
        .def("is_control", &BoundTokenizer::is_control, "id"_a)
        .def("find", &BoundTokenizer::find, "text"_a)
        .def_prop_ro("adds_bos", &BoundTokenizer::adds_bos)
        .def_prop_ro("vocabulary_size", &BoundTokenizer::vocabulary_size)
        .def_prop_ro("token_bytes_max", &BoundTokenizer::token_bytes_max)
        .def_prop_ro("index_bytes", &BoundTokenizer::index_bytes);
}
