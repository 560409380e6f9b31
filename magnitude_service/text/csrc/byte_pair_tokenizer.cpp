#include "byte_pair_tokenizer.h"

#include <cstring>

#include "byte_level.h"
#include "piece_merger.h"

namespace magnitude::text {
std::optional<Defect> BytePairTokenizer::build(const Tables& tables) {
    pre_tokenizer_ = pre_tokenizer_named(tables.pre_tokenizer);
    if (pre_tokenizer_ == nullptr)
        return Defect{Defect::Kind::UNSUPPORTED_MODEL, "There is no pre-tokenizer '" + tables.pre_tokenizer + "'."};
    if (auto defect = vocabulary_.build(tables.tokens, tables.types, tables.control_texts)) return defect;
    if (auto defect = merges_.build(tables.merges, vocabulary_)) return defect;
    if (auto defect = trusted_tokens_.build(vocabulary_, true)) return defect;
    if (auto defect = untrusted_tokens_.build(vocabulary_, false)) return defect;
    for (int byte = 0; byte < 256; ++byte) {
        const char single = static_cast<char>(byte);
        std::string text;
        append_byte_level({&single, 1}, text);
        const std::uint32_t id = vocabulary_.find(text);
        byte_tokens_[byte] = id != NO_TOKEN && vocabulary_.is_control(id) ? NO_TOKEN : id;
    }
    return std::nullopt;
}

namespace {

// Encodes stretches without special tokens. Holds the memory that pieces share.
class PlainEncoder {
  public:
    PlainEncoder(const Vocabulary& vocabulary, const Merges& merges, const PreTokenizer& pre_tokenizer,
                 const std::uint32_t* byte_tokens, std::vector<std::int32_t>& ids)
        : vocabulary_(vocabulary), merger_(merges), pre_tokenizer_(pre_tokenizer), byte_tokens_(byte_tokens),
          ids_(ids) {}

    void append(std::string_view text) {
        const auto* at = reinterpret_cast<const std::uint8_t*>(text.data());
        const auto* const end = at + text.size();
        while (at < end) {
            const auto* const next = pre_tokenizer_.next_piece(at, end);
            append_piece(at, next);
            at = next;
        }
    }

  private:
    void append_piece(const std::uint8_t* at, const std::uint8_t* end) {
        if (pre_tokenizer_.takes_whole_pieces && append_whole({reinterpret_cast<const char*>(at),
                                                               static_cast<std::size_t>(end - at)}))
            return;
        tokens_.clear();
        for (; at < end; ++at)
            if (byte_tokens_[*at] != NO_TOKEN) tokens_.push_back(byte_tokens_[*at]);
        merger_.apply(tokens_);
        ids_.insert(ids_.end(), tokens_.begin(), tokens_.end());
    }

    bool append_whole(std::string_view piece) {
        text_.clear();
        append_byte_level(piece, text_);
        const std::uint32_t id = vocabulary_.find(text_);
        if (id == NO_TOKEN || vocabulary_.is_control(id)) return false;
        ids_.push_back(static_cast<std::int32_t>(id));
        return true;
    }

    const Vocabulary& vocabulary_;
    PieceMerger merger_;
    const PreTokenizer& pre_tokenizer_;
    const std::uint32_t* byte_tokens_;
    std::vector<std::int32_t>& ids_;
    std::vector<std::uint32_t> tokens_;
    std::string text_;
};

}  // namespace

void BytePairTokenizer::encode(std::string_view text, const std::vector<Segment>& segments,
                               std::vector<std::int32_t>& ids) const {
    PlainEncoder plain(vocabulary_, merges_, *pre_tokenizer_, byte_tokens_, ids);
    std::size_t plain_begin = 0, at = 0;
    for (std::size_t index = 0; index < segments.size(); ++index) {
        const bool goes_on = index + 1 < segments.size() && segments[index + 1].is_trusted == segments[index].is_trusted;
        if (goes_on) continue;  // neighbours of one kind are one stretch
        const std::size_t end = segments[index].end;
        const SpecialTokens& specials = segments[index].is_trusted ? trusted_tokens_ : untrusted_tokens_;
        while (at < end) {
            const std::uint32_t id = specials.longest_prefix(text.substr(at, end - at));
            if (id == NO_TOKEN) {
                ++at;
                continue;
            }
            plain.append(text.substr(plain_begin, at - plain_begin));
            ids.push_back(static_cast<std::int32_t>(id));
            plain_begin = at += vocabulary_.text(id).size();
        }
    }
    plain.append(text.substr(plain_begin));
}

}  // namespace magnitude::text
