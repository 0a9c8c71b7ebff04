// Byte-level byte-pair encoding (Sennrich et al., arXiv 1508.07909; on bytes as in GPT-2).
//
// Encoding a word: start from its bytes; while some neighbouring pair has a merge, apply the merge
// of lowest rank at its leftmost place.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace nmoe {

struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;  // the id whose bytes are left's and right's together
  bool operator==(const BpeMerge&) const = default;
};

// All that defines a BPE tokenizer, beside the pattern that splits words (data/tokenizer/word_splitter.h).
struct BpeModel {
  std::vector<std::string> tokens;  // by id: its bytes; "" for eos_id alone
  std::vector<BpeMerge> merges;     // by rank
  int32_t eos_id = 0;
};

// The tokenizer of `model`. Every byte must have a token, all tokens must differ, and each merge's
// result must be what it says: NMOE_CHECK (readers of files verify this first).
//
// encode() takes time O(n log n) in the longest word and reuses the ids of recent words.
std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeModel model);

}  // namespace nmoe
