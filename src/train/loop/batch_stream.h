// The batches of a corpus or mixture: read step by step from the global stream of the data plan (data/stream/loader.h).
//
// Threads: one at a time; the streams of several ranks may share the data they read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "data/stream/documents.h"
#include "data/stream/loader.h"
#include "train/loop/batch_source.h"
#include "train/loop/training_data.h"

namespace nmoe {

class BatchStream : public BatchSource {
 public:
  // Of rank `rank` of config.parallel.ranks. `data` and its `plan` must outlive the stream.
  BatchStream(const Config& config, const TrainingData& data, const StreamPlan& plan, int64_t rank = 0);

  const StreamCursor& cursor() const override { return schedule_.cursor(); }
  void seek(const StreamCursor& cursor) override { schedule_.seek(cursor); }
  void next() override;
  const BatchShape& shape() const override { return shape_; }
  int64_t num_microbatches() const override { return shape_.num_microbatches(config_.parallel.ranks); }
  Microbatch microbatch(int64_t index) override;
  std::span<const int32_t> targets() const override { return targets_; }
  int64_t num_tokens() override;
  // With attention within documents if data.mask_documents is set.
  double flops(const ModelCost& cost) override;

 private:
  Config config_;
  int64_t rank_;
  BatchShape shape_;
  StreamSchedule schedule_;
  SequenceReader reader_;
  std::vector<SequenceRef> batch_, refs_;  // of all ranks, of this one
  std::vector<int32_t> inputs_, targets_;  // of the rank
  std::vector<uint8_t> ends_;              // of documents, as SequenceReader::read gives them; only where it masks them
  std::vector<Documents> documents_;       // of each microbatch; empty ones where it masks none
};

}  // namespace nmoe
