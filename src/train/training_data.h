// The prepared corpus a run trains on, checked against its configuration.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/shards/dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

struct TrainingData {
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenDataset train;
  std::optional<TokenDataset> valid;  // a corpus may have no validation split

  int64_t mapped_bytes() const;
  // SHA-256 over the tokenizer and the training shards: changes when any token to train on changes.
  std::string fingerprint() const;
};

// Opens <data.path>/{tokenizer.json, train, valid}. Error when they are missing or disagree with each other.
TrainingData open_training_data(const Config& config);

// The configuration with model.vocab_size filled in from the tokenizer where it is 0. Error (usage) when it is
// smaller than the tokenizer's.
Config resolve_vocab_size(Config config, const Tokenizer& tokenizer);

}  // namespace nmoe
