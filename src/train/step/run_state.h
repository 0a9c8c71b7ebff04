// Where a run is: what a checkpoint says of it beside weights and moments.
#pragma once

#include "data/stream/cursor.h"
#include "optim/schedule.h"

namespace nmoe {

struct RunState {
  Progress progress;
  int64_t tokens = 0;   // of documents so far: progress.tokens without padding (data/stream/alignment.h)
  StreamCursor cursor;  // where the next batch begins
  double flops = 0.0;   // so far, over all ranks
};

}  // namespace nmoe
