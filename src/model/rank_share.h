// What a rank has, updates and computes of a model that several ranks train. Each part of the answer is of another
// group of ranks (parallel/mesh.h), and says what index this rank has in it.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "model/spec/spec.h"

namespace nmoe {

// Which of the stacked experts of each layer it has: the ranks of an experts' group divide them equally.
struct ExpertShare {
  int64_t index = 0, count = 1;
};

// Which part of all other weights it updates: the ranks among which that work is divided have the whole of each.
struct UpdateShare {
  int64_t index = 0, count = 1;
  std::vector<WeightGroup> by_matrix = {};                     // groups that are updated by whole matrices (Muon)
  DType narrowest = DType::kF32;                               // elements that are kept of a weight that ranks cut
  int64_t bucket_bytes = std::numeric_limits<int64_t>::max();  // model/spec/flat_weights.h
  // Gradients are those of one microbatch, which the engine adds up shard by shard; those of experts are added up over
  // microbatches as always (train/step/engine.h).
  bool in_order = false;
};

// Which microbatches of a step it computes: microbatch m of rank i of a data group of W is shard m * W + i of the
// step's batch.
struct DataShare {
  int64_t index = 0, count = 1;
};

struct RankShare {
  ExpertShare experts = {};
  UpdateShare updates = {};
  DataShare data = {};
};

}  // namespace nmoe
