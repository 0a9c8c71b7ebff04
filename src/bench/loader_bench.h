// Times reading batches, as a trainer reads them.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace nmoe {

struct LoaderBench {
  double megabytes = 0.0;  // of token ids, 4 bytes each
  double seconds = 0.0;
  double slowest_ms = 0.0;    // of one batch
  int64_t num_sequences = 0;  // read
  uint64_t checksum = 0;      // of what was read
};

// Reads batches of the run's data on one thread until they make `megabytes`, or the plan ends. Errors: of the data.
LoaderBench bench_loader(const Config& config, int64_t megabytes);

}  // namespace nmoe
