// The file format of BPE tokenizers: Hugging Face's `tokenizer.json`.
//
// Read are byte-level BPE models:
//   model           BPE with a token for every byte; "merges" as "a b" or ["a", "b"]; ignore_merges; no dropout,
//                   affixes or byte fallback
//   pre_tokenizer   Split (by a text or a regular expression, of any behavior, inverted or not), Digits, then ByteLevel
//                   without a prefix space; one of them or a Sequence
//   normalizer      none, or NFC
//   added_tokens    special or not; none that include the space around them, or match only whole words
//   decoder         ByteLevel
//   post_processor  kept for the file, as encode() adds no tokens to a text
// Anything else would be encoded differently here than there, so it is an error that names it. What is written has this
// form, and Hugging Face's library produces the same ids with it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizer/bpe_model.h"

namespace nmoe {

std::string bpe_to_json(const BpeModel& model);

// A special token, by its id or its text; or neither, where nobody names one.
struct NamedEnd {
  std::optional<int64_t> id;
  std::string text;
};

// `path` names the file in messages. What ends documents is the special token `eos`; "": the one that the file marks,
// as bpe_to_json does, or the only one with a usual name of it (<|endoftext|>, <|end_of_text|>, <｜end▁of▁sentence｜>,
// <eos>, </s>); where that leaves none or several, what `other` says, if anything. Error (usage) if that is no special
// token of the file; (runtime) naming what is not supported in the file.
BpeModel bpe_from_json(std::string_view json, std::string_view path, std::string_view eos = "",
                       const std::function<NamedEnd()>& other = {});

}  // namespace nmoe
