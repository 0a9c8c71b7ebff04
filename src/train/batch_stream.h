// A run's batches: the global stream of its data plan, a step at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "data/stream/documents.h"
#include "data/stream/loader.h"
#include "train/training_data.h"

namespace nmoe {

// One forward and backward pass's share of a batch: [microbatch_seqs * seq_len] each.
struct Microbatch {
  std::span<const int32_t> inputs, targets;
  const Documents& documents;  // empty without data.mask_documents
};

class BatchStream {
 public:
  // `data` must outlive the stream. Errors: plan_training_data.
  BatchStream(const Config& config, const TrainingData& data, int64_t active_parameters);
  BatchStream(const BatchStream&) = delete;  // the schedule refers to the plan
  BatchStream& operator=(const BatchStream&) = delete;

  const StreamPlan& plan() const { return plan_; }

  // Where the next batch begins.
  const StreamCursor& cursor() const { return schedule_.cursor(); }
  void seek(const StreamCursor& cursor) { schedule_.seek(cursor); }

  // Reads the next train.batch_seqs sequences; what microbatch() gave before is overwritten.
  void next();

  int64_t num_microbatches() const;
  // Good until the next call.
  Microbatch microbatch(int64_t index);
  std::span<const int32_t> targets() const { return targets_; }  // of the whole batch
  int64_t num_targets() const;                                   // those with a loss

 private:
  int64_t batch_seqs_, microbatch_seqs_;
  bool mask_documents_;
  size_t microbatch_tokens_;
  StreamPlan plan_;
  StreamSchedule schedule_;
  SequenceReader reader_;
  std::vector<SequenceRef> refs_;
  std::vector<int32_t> inputs_, targets_;  // of one batch
  Documents documents_;                    // of one microbatch
};

}  // namespace nmoe
