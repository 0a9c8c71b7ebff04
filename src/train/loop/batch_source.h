// What gives a run its batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/stream/cursor.h"
#include "model/spec/cost.h"
#include "train/step/batch_shape.h"
#include "train/step/microbatch.h"

namespace nmoe {

// One rank's share of a run's batches, step by step. The sources of all ranks are made alike and make the same calls:
// together they give every batch whole, each the microbatches that BatchShape::part() says are its rank's.
//
// Threads: one at a time.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Where the next batch of all ranks begins, as checkpoints store it; seek() continues from there. Error (runtime)
  // from seek() if the source cannot lead there.
  virtual const StreamCursor& cursor() const = 0;
  virtual void seek(const StreamCursor& cursor) = 0;

  // Reads this rank's part of the next batch, and overwrites what it gave before.
  virtual void next() = 0;

  // Of what was read last. Views are valid until the next call.
  virtual const BatchShape& shape() const = 0;
  virtual int64_t num_microbatches() const = 0;  // of this rank
  virtual Microbatch microbatch(int64_t index) = 0;
  virtual std::span<const int32_t> targets() const = 0;  // of all microbatches; kNoTarget: no loss there
  virtual int64_t num_tokens() = 0;                      // of their documents, without padding
  virtual double flops(const ModelCost& cost) = 0;       // of training on these

  int64_t num_targets() const;                            // those with a loss
  std::vector<int64_t> num_targets_ahead(int64_t depth);  // of depths 1 to `depth` (train/step/look_ahead.h)
};

}  // namespace nmoe
