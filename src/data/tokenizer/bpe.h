// Byte-level byte-pair encoding (Sennrich et al., arXiv 1508.07909; on bytes as in GPT-2).
//
// Encoding a word: start from its bytes; while any neighbouring pair has a merge, apply the
// merge of lowest rank at its leftmost position.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/merge_table.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/word_splitter.h"

namespace nmoe {

// A token in addition to the BPE's vocabulary. The text of a special one is ordinary text unless a caller allows it;
// the text of any other always becomes that token, even within a word.
struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = true;
  bool normalized = false;  // searched for after normalization, in what the others leave
  bool in_vocab = true;     // listed in the file's vocabulary too
  bool operator==(const AddedToken&) const = default;
};

// Everything that defines a BPE tokenizer.
struct BpeModel {
  std::vector<std::string> tokens;  // by id: its bytes; "" for ids that are not tokens of the BPE
  std::vector<BpeMerge> merges;     // by rank
  int32_t eos_id = 0;               // of a special one of `added`
  std::vector<AddedToken> added;    // by id
  std::vector<Split> splits;        // data/tokenizer/word_splitter.h
  bool nfc = false;                 // text is normalized first (data/tokenizer/normalize.h)
  bool whole_words = false;         // a word that is a token's bytes is that token, whatever the merges give
  std::string post_processor;       // JSON that json() passes on: encode() adds no tokens to a text
};

// The tokenizer of `model`. Every byte must have a token, all tokens must differ, and each merge's result must be what
// it says: NMOE_CHECK (readers of files verify this first).
//
// encode() takes time O(n log n) in the longest word and reuses the ids of recent words.
std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeModel model);

}  // namespace nmoe
