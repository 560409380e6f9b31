// Pre-tokenizers: where a text is cut into pieces before merges are applied. No merge crosses a cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace magnitude::text {

struct PreTokenizer {
    const char* name;  // `tokenizer.ggml.pre`

    // The end of the piece that begins at `at`; `at < end`, and the result is in (at, end]. Bytes outside
    // [at, end) are never read. Any bytes are allowed (utf8.h says how invalid ones count).
    const std::uint8_t* (*next_piece)(const std::uint8_t* at, const std::uint8_t* end);

    bool takes_whole_pieces;  // a piece that is a token as it stands becomes that token, whatever the merges say
    bool adds_bos;            // unless `tokenizer.ggml.add_bos_token` says otherwise
};

extern const PreTokenizer PRE_TOKENIZERS[];
extern const std::size_t PRE_TOKENIZER_COUNT;

// nullptr if there is none of this name.
const PreTokenizer* pre_tokenizer_named(std::string_view name);

}  // namespace magnitude::text
