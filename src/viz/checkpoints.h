// What there is of a run's checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "track/runs.h"

namespace nmoe {

struct CheckpointRow {
  int64_t step = 0;
  std::string fault;  // of one whose manifest cannot be read; then the rest is empty
  int64_t tokens = 0;
  int64_t bytes = 0;           // of all its files
  std::string weights_sha256;  // as `n checkpoint info` says it
  std::string created_at;
};

// By step, those of this run that are in <run_dir>/checkpoints/<its name>. Manifests alone are read: tensors are not
// verified.
std::vector<CheckpointRow> checkpoints_of(const fs::path& run_dir, const RunRow& run);

}  // namespace nmoe
