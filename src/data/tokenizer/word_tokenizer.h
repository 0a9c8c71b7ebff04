// A fixed list of words with a space between: the vocabulary of synthetic corpora.
//
// Unlike byte-level tokenizers, this one knows only its words. Its file is a Hugging Face `tokenizer.json` with a
// WordLevel model, a WhitespaceSplit pre-tokenizer and <|endoftext|> as the last id; no other form can be read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// Id i is words[i], and words.size() the end of sequence. Words are not empty, all different, and consist of ASCII
// without white space. encode() takes text of these words, and throws Error (runtime) naming any other. token_bytes()
// of a word is the word and a space.
std::shared_ptr<const Tokenizer> make_word_tokenizer(std::vector<std::string> words);

// The tokenizer of a file that its json() wrote; null if `json` has no WordLevel model. Error (runtime), naming `path`,
// if it has one, but not in this form.
std::shared_ptr<const Tokenizer> word_tokenizer_from_json(std::string_view json, std::string_view path);

}  // namespace nmoe
