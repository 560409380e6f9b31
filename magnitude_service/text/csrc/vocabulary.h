// The tokens of a model: their texts in the mapped file, their types, and an index from text to id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hashing.h"
#include "string_table.h"

namespace magnitude::text {

// `tokenizer.ggml.token_type`. The numbers are the file format's.
enum class TokenType : std::uint8_t {
    UNDEFINED = 0,
    NORMAL = 1,
    UNKNOWN = 2,       // treated as CONTROL
    CONTROL = 3,       // never produced from what a user typed; shown as nothing
    USER_DEFINED = 4,  // a literal text, matched before everything else, in any text
    UNUSED = 5,        // a place without a token; shown as nothing
    BYTE = 6,
};
constexpr std::uint8_t TOKEN_TYPE_MAX = 6;

constexpr std::uint32_t NO_TOKEN = 0xFFFFFFFF;
constexpr std::uint32_t TOKENS_MAX = 1u << 24;

class Vocabulary {
  public:
    // `types` has one entry per token. A token whose text is one of `control_texts` becomes CONTROL, whatever the file
    // says: converters often leave `<|im_end|>` and its like NORMAL.
    // Lifetime: keeps pointers into the table's memory.
    std::optional<Defect> build(const StringTable& tokens, const std::uint8_t* types,
                                const std::vector<std::string>& control_texts);

    std::uint32_t size() const { return tokens_.count; }
    std::string_view text(std::uint32_t id) const { return tokens_[id]; }
    TokenType type(std::uint32_t id) const { return types_[id]; }

    // CONTROL or UNKNOWN.
    bool is_control(std::uint32_t id) const {
        return types_[id] == TokenType::CONTROL || types_[id] == TokenType::UNKNOWN;
    }

    // The id with this text, or NO_TOKEN. Texts are unique, but for the empty one, which is no token.
    std::uint32_t find(std::string_view text) const { return find(text, hash(text)); }

    // The same in two steps, for callers with many texts: `hash` asks for the cache line that `find` will look at.
    std::uint64_t hash(std::string_view text) const {
        const std::uint64_t hash = hash_bytes(key_, text);
        __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]);
        return hash;
    }
    std::uint32_t find(std::string_view text, std::uint64_t hash) const;

    // What the token contributes to an answer: a literal text for USER_DEFINED, and for control tokens where they are
    // shown; nothing for UNUSED; else the bytes that the byte-level text stands for.
    void append_bytes(std::uint32_t id, bool render_special, std::string& out) const;

    // The most bytes of text that one token stands for.
    std::uint64_t token_bytes_max() const;

    std::uint64_t index_bytes() const { return slots_.size() * sizeof(Slot) + types_.size(); }

  private:
    struct Slot {
        std::uint32_t hash_high;  // spares most looks at the text, which is far away
        std::uint32_t id;
    };

    // Enters the token in the index. The id that the index has for its text: another one if it was there already.
    std::uint32_t index(std::uint32_t id);

    StringTable tokens_;
    std::vector<TokenType> types_;
    std::vector<Slot> slots_;
    std::uint64_t key_ = 0;
};

}  // namespace magnitude::text
