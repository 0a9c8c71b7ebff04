// Byte-level byte-pair encoding (Sennrich et al., arXiv 1508.07909; on bytes as in GPT-2).
//
// Encoding a word: start from its bytes; while any neighbouring pair has a merge, apply the
// merge of lowest rank at its leftmost position.
#pragma once

#include <memory>

#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// The tokenizer of `model`. Every byte must have a token, all tokens must differ, and each merge's result must be what
// it says: NMOE_CHECK (readers of files verify this first).
//
// encode() takes time O(n log n) in the longest word and reuses the ids of recent words.
std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeModel model);

}  // namespace nmoe
