// The file format of BPE tokenizers: Hugging Face's `tokenizer.json`.
//
// Read are byte-level BPE models:
//   model           BPE with a token for every byte; "merges" as "a b" or ["a", "b"]; ignore_merges; no dropout,
//                   affixes or byte fallback
//   pre_tokenizer   Split by a regular expression (Isolated, or Removed and inverted, which is the same for a pattern
//                   that covers all text), Digits, then ByteLevel without a prefix space; one of them or a Sequence
//   normalizer      none, or NFC
//   added_tokens    special or not; none that include the space around them, or match only whole words
//   decoder         ByteLevel
//   post_processor  kept for the file, as encode() adds no tokens to a text
// Anything else would be encoded differently here than there, so it is an error that names it. What is written has this
// form, and Hugging Face's library produces the same ids with it.
#pragma once

#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace nmoe {

std::string bpe_to_json(const BpeModel& model);

// `path` names the file in messages. `eos` is the special token that ends documents; "": the one that the file marks,
// as bpe_to_json does, or the only one with a usual name of it (<|endoftext|>, <|end_of_text|>, <｜end▁of▁sentence｜>,
// <eos>, </s>). Error (usage) if that leaves none or several; (runtime) naming what is not supported in the file.
BpeModel bpe_from_json(std::string_view json, std::string_view path, std::string_view eos = "");

}  // namespace nmoe
