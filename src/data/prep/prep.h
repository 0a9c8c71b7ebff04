// Text files to a dataset: OUT/train, OUT/valid (data/shards/shard.h) and OUT/tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace nmoe {

struct PrepProgress {
  int64_t bytes = 0;  // of text done, of ...
  int64_t total_bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
};

struct PrepOptions {
  // Files, folders, globs: data/prep/inputs.h.
  std::vector<std::string> inputs = {};
  // Those for validation; a file that `inputs` names too is for validation only.
  std::vector<std::string> valid_inputs = {};
  // In [0, 1), of the documents: a hash of its text decides where a document goes.
  double valid_fraction = 0.0;
  // The line that ends a document. Empty: a file is a document.
  std::string split_on = {};
  // "bytes" or a tokenizer's file: data/tokenizer/tokenizer.h.
  std::string tokenizer = "bytes";
  // Goes into the shards' names: letters, digits, '.', '_' and '-'.
  std::string dataset = "corpus";
  std::filesystem::path out = {};
  int64_t tokens_per_shard = 500'000'000;
  int threads = 0;  // 0: one per available CPU
  // Replace the dataset that `out` holds.
  bool force = false;
  // Called now and then from the caller's thread.
  std::function<void(const PrepProgress&)> progress = {};
};

struct SplitReport {
  int64_t documents = 0;
  int64_t tokens = 0;  // end-of-sequence ids included
  int64_t bytes = 0;   // of text
  int64_t shards = 0;
};

struct PrepReport {
  SplitReport train;
  SplitReport valid;  // all 0 when no validation split was asked for, and none is written
  double seconds = 0;
};

// Encodes every document and writes the splits. Text is taken byte for byte; empty documents are
// left out. The order is that of the inputs, and the shards are the same bytes for any number of
// threads.
//
// A validation split comes from `valid_inputs` or from `valid_fraction`, not both. With the latter,
// equal documents land in the same split.
//
// Error (usage) on options that cannot be met: nothing to read, an empty split, a document longer
// than a shard, a dataset already in `out` without `force`. On any failure `out` is as it was.
PrepReport prepare_dataset(const PrepOptions& options);

}  // namespace nmoe
