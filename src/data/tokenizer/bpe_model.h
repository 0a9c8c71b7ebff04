// What defines a byte-level BPE tokenizer (data/tokenizer/bpe.h), however it is kept in files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/merge_table.h"
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

}  // namespace nmoe
