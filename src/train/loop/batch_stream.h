// A rank's share of a run's batches, read step by step from the global stream of the data plan (data/stream/loader.h).
//
// Threads: one at a time; the streams of several ranks may share the data they read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "data/stream/documents.h"
#include "data/stream/loader.h"
#include "model/spec/cost.h"
#include "train/loop/training_data.h"
#include "train/step/batch_shape.h"

namespace nmoe {

// The part of a batch for one forward and backward pass: [microbatch_tokens()] each.
struct Microbatch {
  std::span<const int32_t> inputs, targets;
  const Documents& documents;  // empty without data.mask_documents
};

class BatchStream {
 public:
  // `data` and its `plan` must outlive the stream. Of every batch it reads the microbatches of one of W =
  // config.parallel.ranks ranks: the m-th of rank i is microbatch m * W + i of the batch.
  BatchStream(const Config& config, const TrainingData& data, const StreamPlan& plan, int64_t rank = 0);

  // Where the next batch of all ranks begins.
  const StreamCursor& cursor() const { return schedule_.cursor(); }
  void seek(const StreamCursor& cursor) { schedule_.seek(cursor); }

  // Reads this rank's part of the next step's sequences, and overwrites what microbatch() returned before.
  void next();

  const BatchShape& shape() const { return shape_; }  // of what was read last
  int64_t num_microbatches() const { return shape_.num_microbatches(config_.parallel.ranks); }
  // Valid until the next call.
  Microbatch microbatch(int64_t index);
  std::span<const int32_t> targets() const { return targets_; }  // of all microbatches
  int64_t num_targets() const;                                   // those with a loss
  // FLOPs of training on them, with attention within documents if data.mask_documents is set.
  double flops(const ModelCost& cost);

 private:
  Config config_;
  int64_t rank_;
  BatchShape shape_;
  StreamSchedule schedule_;
  SequenceReader reader_;
  std::vector<SequenceRef> batch_, refs_;  // of all ranks, of this one
  std::vector<int32_t> inputs_, targets_;  // of the rank
  std::vector<uint8_t> ends_;              // of documents, as SequenceReader::read gives them; only where it masks them
  Documents documents_;                    // of one microbatch
};

}  // namespace nmoe
