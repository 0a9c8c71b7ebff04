// The file format of BPE tokenizers: Hugging Face's `tokenizer.json`.
//
// Of that format exactly one shape is written and read: a BPE model on byte-level tokens without
// dropout, unknown token, affixes or byte fallback; pre_tokenizer Sequence[Split(kSplitPattern,
// isolated), ByteLevel]; decoder ByteLevel; no normalizer, post-processor, truncation or padding;
// one added token, <|endoftext|>. Any other shape would encode differently here than there, so it
// is refused.
#pragma once

#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace nmoe {

std::string bpe_to_json(const BpeModel& model);

// Error (runtime) naming `path`, the offending key and what is supported.
BpeModel bpe_from_json(std::string_view json, std::string_view path);

}  // namespace nmoe
