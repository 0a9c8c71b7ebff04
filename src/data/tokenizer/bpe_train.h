// Learning a BPE tokenizer from text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/prep/inputs.h"
#include "data/prep/records.h"
#include "data/tokenizer/bpe.h"

namespace nmoe {

struct BpeTrainOptions {
  std::vector<std::string> inputs = {};  // files, folders, globs: data/prep/inputs.h
  RecordOptions records = {};            // where text is within them
  int64_t skip_bad = 0;                  // unusable records to skip; one more is an error
  int64_t vocab_size = 8192;             // number of ids: 256 bytes, the merges, the end of sequence, `specials`
  // Special tokens besides the end of sequence, such as those of a chat template; the last ids, in this order.
  std::vector<std::string> specials = {};
  int threads = 0;  // 0: one per available CPU
};

struct BpeTrainReport {
  int64_t bytes = 0;  // of text
  int64_t bad_records = 0;
  InputPaths left_out = {};  // without its `files`
  int64_t words = 0;
  int64_t distinct_words = 0;
  double count_seconds = 0;
  double merge_seconds = 0;
};

struct TrainedBpe {
  std::shared_ptr<const Tokenizer> tokenizer;
  BpeTrainReport report;
};

// Counts the words of all inputs, which are read as n prep reads them, then merges (train_bpe_model). The same inputs
// give the same tokenizer for any number of threads. Needs memory for the distinct words and about 100 MB of text,
// whatever the inputs' size. Error (usage) on a vocabulary smaller than 257 and the special tokens, on a special token
// that is empty or duplicate, on inputs that name nothing, and on too little text for the vocabulary; also errors of
// open_records and bad_record_error.
TrainedBpe train_bpe(const BpeTrainOptions& options);

// A word and how often it occurs.
using WordCount = std::pair<std::string, int64_t>;

// The merges that byte-pair encoding finds in `words` (each word once). Repeatedly the most
// frequent neighbouring pair is merged, of equals the one with the lowest (left, right) ids, until
// there are `vocab_size` ids or no pair occurs twice. Ids: bytes by value, then merges in order,
// then the end of sequence. A merge whose bytes are already a token's adds no id.
BpeModel train_bpe_model(const std::vector<WordCount>& words, int64_t vocab_size);

}  // namespace nmoe
