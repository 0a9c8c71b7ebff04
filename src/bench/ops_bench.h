// Times the operations of a training step, each by itself, against what bounds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "ops/ops.h"

namespace nmoe {

struct OpTiming {
  std::string name;    // "attention, backward"
  std::string shape;   // "8 x 4096 tokens, 16 heads of 192/128"
  double flops = 0.0;  // of its products, as its formula defines them: no padding, nothing computed again
  double bytes = 0.0;  // that its definition reads and writes, each once
  double ms = 0.0;     // median
};

struct OpsBench {
  std::string device;
  SoftwareVersions software;
  double copy_bytes_per_s = 0.0;  // of a copy from memory to memory, read and written: measured beside the operations
  double gemm_flops = 0.0;        // of one large square product: measured too
  std::vector<OpTiming> ops;

  double bound_ms(const OpTiming& op) const;  // by the slower of its bytes at that rate and its FLOPs at that
  bool is_memory_bound(const OpTiming& op) const;
};

// On the run's device. Sizes are those of the speedrun configurations, with working sets beyond any cache, where the
// device has memory of its own, and far smaller else. With run.precision = kFp8 layers' products, but for gradients of
// weights, have FP8 operands: weights that were rounded before, rows that are rounded in the call. `only` chooses the
// operations whose names contain it; Error (usage) where none does.
OpsBench bench_ops(const RunConfig& run, const std::string& only);

}  // namespace nmoe
