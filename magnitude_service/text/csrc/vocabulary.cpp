#include "vocabulary.h"

#include <algorithm>

#include "byte_level.h"

namespace magnitude::text {

std::optional<Defect> Vocabulary::build(const StringTable& tokens, const std::uint8_t* types,
                                        const std::vector<std::string>& control_texts) {
    if (auto defect = tokens.defect()) return defect;
    tokens_ = tokens;
    key_ = hash_key();
    types_.resize(tokens.count);
    slots_.assign(slots_for(tokens.count), Slot{0, NO_TOKEN});
    for (std::uint32_t id = 0; id < tokens.count; ++id) {
        if (types[id] > TOKEN_TYPE_MAX)
            return Defect{Defect::Kind::INTEGRITY,
                          "tokenizer.ggml.token_type[" + std::to_string(id) + "] is " + std::to_string(types[id]) +
                              "; types go up to " + std::to_string(TOKEN_TYPE_MAX) + "."};
        types_[id] = static_cast<TokenType>(types[id]);
        if (text(id).empty()) continue;
        if (const std::uint32_t other = index(id); other != id)
            return Defect{Defect::Kind::INTEGRITY, "tokenizer.ggml.tokens[" + std::to_string(other) + "] and [" +
                                                       std::to_string(id) + "] are the same token."};
    }
    for (const std::string& control_text : control_texts)
        if (const std::uint32_t id = find(control_text); id != NO_TOKEN) types_[id] = TokenType::CONTROL;
    return std::nullopt;
}

std::uint32_t Vocabulary::index(std::uint32_t id) {
    const std::string_view text = tokens_[id];
    const std::uint64_t hash = hash_bytes(key_, text);
    const std::uint64_t mask = slots_.size() - 1;
    const auto hash_high = static_cast<std::uint32_t>(hash >> 32);
    std::uint64_t at = hash & mask;
    for (; slots_[at].id != NO_TOKEN; at = (at + 1) & mask)
        if (slots_[at].hash_high == hash_high && tokens_[slots_[at].id] == text) return slots_[at].id;
    slots_[at] = {hash_high, id};
    return id;
}

std::uint32_t Vocabulary::find(std::string_view text, std::uint64_t hash) const {
    const std::uint64_t mask = slots_.size() - 1;
    const auto hash_high = static_cast<std::uint32_t>(hash >> 32);
    for (std::uint64_t at = hash & mask; slots_[at].id != NO_TOKEN; at = (at + 1) & mask)
        if (slots_[at].hash_high == hash_high && tokens_[slots_[at].id] == text) return slots_[at].id;
    return NO_TOKEN;
}

void Vocabulary::append_bytes(std::uint32_t id, bool render_special, std::string& out) const {
    if (is_control(id)) {
        if (render_special) out.append(text(id));
    } else if (type(id) == TokenType::USER_DEFINED) {
        out.append(text(id));
    } else if (type(id) != TokenType::UNUSED) {
        append_bytes_of(text(id), out);
    }
}

std::uint64_t Vocabulary::token_bytes_max() const {
    std::uint64_t most = 0;
    std::string bytes;
    for (std::uint32_t id = 0; id < size(); ++id) {
        const std::uint64_t spelt = text(id).size();  // never fewer than the bytes that it stands for
        if (spelt <= most) continue;
        bytes.clear();
        if (type(id) == TokenType::NORMAL) append_bytes(id, true, bytes);
        most = std::max<std::uint64_t>(most, type(id) == TokenType::NORMAL ? bytes.size() : spelt);
    }
    return most;
}

}  // namespace magnitude::text
