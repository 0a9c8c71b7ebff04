// A synthetic source as a prepared dataset: OUT/train, OUT/valid and OUT/tokenizer.json as `n prep` writes them
// (data/prep/prep.h), and OUT/ground_truth.json. Shards hold the documents' loss masks if the source has answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/synthetic/source.h"

namespace nmoe {

struct SynthesizeOptions {
  std::string kind = {};
  std::vector<std::string> settings = {};  // "key=value", data/synthetic/kinds.h
  uint64_t seed = 1;
  int64_t documents = 0;        // of the training split: the source's first
  int64_t valid_documents = 0;  // of the validation split: those after; 0: no such split
  std::filesystem::path out = {};
  bool all_tokens = false;  // train on the questions too: masks in the validation split alone
  int64_t tokens_per_shard = 500'000'000;
  int threads = 0;     // 0: one per available CPU
  bool force = false;  // replace the dataset that `out` holds
};

struct SynthesizeReport {
  int64_t train_tokens = 0;  // end-of-sequence ids included
  int64_t valid_tokens = 0;
  bool has_answers = false;  // of the source
  EntropyFloor floor;
};

// ground_truth.json holds kind, seed, settings, all_tokens, vocab_size, eos_token_id and "floor", EntropyFloor's
// members and its three quotients. The same options give the same bytes for any number of threads, except for the
// manifests' times. Error (usage) on options that cannot be met, a dataset already in `out` without `force` among them.
// An error leaves nothing new behind.
SynthesizeReport synthesize(const SynthesizeOptions& options);

}  // namespace nmoe
