// A fixed list of words with a space between: the vocabulary of synthetic corpora.
//
// Unlike the byte-level tokenizers this one knows its words only. Its file is a Hugging Face `tokenizer.json` with a
// WordLevel model, a WhitespaceSplit pre-tokenizer and <|endoftext|> as the last id; that shape exactly is read back.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// Id i is words[i], and words.size() the end of sequence. Words are not empty, differ, and have no white space and no
// bytes but ASCII. encode() takes text of these words, and throws Error (runtime) naming any other. token_bytes() of a
// word is the word and a space.
std::shared_ptr<const Tokenizer> make_word_tokenizer(std::vector<std::string> words);

// The tokenizer of a file that its json() wrote; null when `json` has no WordLevel model. Error (runtime) naming `path`
// when it has, but is not of that shape.
std::shared_ptr<const Tokenizer> word_tokenizer_from_json(std::string_view json, std::string_view path);

}  // namespace nmoe
