// tiktoken's rank files: a line a token, its bytes in base64, a space, and its rank, which is its id too.
//
// Such a file has no split pattern and no special tokens: those are of an encoding that it is read for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe_model.h"

namespace nmoe {

// gpt2, r50k_base, cl100k_base, o200k_base, o200k_harmony.
std::vector<std::string> tiktoken_encodings();

// The encoding whose ranks these are, by the file's SHA-256 ("o200k_base" for what o200k_harmony shares with it).
// Nothing for other files.
std::optional<std::string> tiktoken_encoding_of(std::string_view file);

// tiktoken merges the neighbours whose bytes together have the lowest rank. That is byte-pair encoding with one merge a
// token: of the two tokens that all lower merges leave of its bytes. A token of which they leave more is only reached
// as a whole word.
//
// `encoding` is one of tiktoken_encodings(); `path` names the file in messages. Error (runtime) with the line that is
// no token, repeats one, or takes an id of the encoding's special tokens, and on a byte without a token.
BpeModel bpe_from_tiktoken(std::string_view file, std::string_view path, std::string_view encoding);

}  // namespace nmoe
