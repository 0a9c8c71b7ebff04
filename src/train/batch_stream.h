// A rank's share of a run's batches: the global stream of its data plan, a step at a time (data/stream/loader.h).
//
// Threads: one at a time; streams of several ranks may share the data they read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "data/stream/documents.h"
#include "data/stream/loader.h"
#include "model/cost.h"
#include "train/training_data.h"

namespace nmoe {

// One forward and backward pass's share of a batch: [microbatch_seqs * seq_len] each.
struct Microbatch {
  std::span<const int32_t> inputs, targets;
  const Documents& documents;  // empty without data.mask_documents
};

class BatchStream {
 public:
  // `data` and its `plan` must outlive the stream. `slice`: the part of every batch to read, in whole microbatches.
  BatchStream(const Config& config, const TrainingData& data, const StreamPlan& plan, RankSlice slice);

  // Where the next batch begins, that of all ranks.
  const StreamCursor& cursor() const { return schedule_.cursor(); }
  void seek(const StreamCursor& cursor) { schedule_.seek(cursor); }

  // Reads this rank's part of the next train.batch_seqs sequences; what microbatch() gave before is overwritten.
  void next();

  int64_t num_microbatches() const;
  // Good until the next call.
  Microbatch microbatch(int64_t index);
  std::span<const int32_t> targets() const { return targets_; }  // of all microbatches
  int64_t num_targets() const;                                   // those with a loss
  // What training on them takes: attention within documents where data.mask_documents is set.
  double flops(const ModelCost& cost);

 private:
  int64_t batch_seqs_;
  RankSlice slice_;  // of a batch
  int64_t microbatch_seqs_;
  bool mask_documents_;
  size_t microbatch_tokens_;
  StreamSchedule schedule_;
  SequenceReader reader_;
  std::vector<SequenceRef> refs_;
  std::vector<int32_t> inputs_, targets_;  // of the slice
  Documents documents_;                    // of one microbatch
};

}  // namespace nmoe
