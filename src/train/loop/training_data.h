// The prepared corpus that a run trains on, checked against its configuration.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/mixture.h"
#include "data/shards/dataset.h"
#include "data/stream/plan.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

// A folder that `n prep` wrote.
struct DataSource {
  std::string name;
  TokenDataset train;
  std::optional<TokenDataset> valid;  // a corpus may have no validation split

  SourceFacts facts(int64_t alignment = 1) const;  // of documents: data/stream/alignment.h
};

struct TrainingData {
  std::shared_ptr<const Tokenizer> tokenizer;  // of all sources
  std::optional<Mixture> mixture;              // nothing: a single source, without end
  std::vector<DataSource> sources;             // at least one

  // The host memory that reading needs: mapped files, and every rank's orders (data/stream/order.h).
  int64_t host_bytes(const Config& config) const;
  std::vector<const TokenDataset*> train_sets() const;
  // Of the run's sequences (train/step/batch_shape.h).
  std::vector<int64_t> sequence_lengths(const Config& config) const;
};

// Whether data.path or data.mixture names a corpus that exists.
bool has_training_data(const Config& config);

// Opens data.path, or every source of data.mixture: {tokenizer.json, train, valid} in each. Error if something is
// missing, or if tokenizers and shards, or the sources, disagree.
TrainingData open_training_data(const Config& config);

// Reads every byte of all splits and compares it with the manifests (TokenDataset::verify), whose checksums are what
// data_fingerprint() is made of. Error (runtime) naming the first file that has changed.
void verify_training_data(const TrainingData& data);

// How much a run reads of each source. `active_parameters` scales profiles that set tokens_per_active_parameter.
// Errors: sequence_lengths, make_stream_plan, run_steps; and (usage) if the run needs more than the plan has.
StreamPlan plan_training_data(const Config& config, const TrainingData& data, int64_t active_parameters);

// A line that says which sources have no validation split, and how to make one; "" if all have one.
std::string note_on_validation(const TrainingData& data);

// SHA-256 over the tokenizer with its end of documents and the plan, and through the plan over the training shards and
// their masks: it changes whenever any token to train on, its loss mask, or its place in the stream changes.
std::string data_fingerprint(const TrainingData& data, const StreamPlan& plan);

// Whole steps of the plan.
int64_t plan_steps(const Config& config, const StreamPlan& plan);

// The configuration with model.vocab_size filled in from the tokenizer if it is 0. Error
// (usage) if it is smaller than the tokenizer's.
Config resolve_vocab_size(Config config, const Tokenizer& tokenizer);
// Of a configuration whose model.vocab_size is 0 and which has no training data to resolve it with.
Error unknown_vocab_size(const Config& config);

}  // namespace nmoe
