// What is kept of earlier tokens, so that a later one costs one row of work: per layer, tables of slots (one sequence
// each) by positions.
//
// Z slots, C positions (capacity), T rows of one cached forward.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// One layer's part: what its kind of mixer describes (CacheSpec of model/spec.h).
struct LayerCache {
  std::vector<Tensor> tensors;  // [Z, C, width] each
};

struct KvCache {
  int64_t num_slots = 0;
  int64_t capacity = 0;
  std::vector<LayerCache> layers;
};

// Tokens to run through the model, each the next one of the sequence in its slot; several of one slot are legal. What
// a row attends to, positions 0 ... its own of its slot, must be in the cache already or among these rows.
struct CachedRows {
  Tensor tokens;     // [T] i32
  Tensor slots;      // [T] i32, < Z
  Tensor positions;  // [T] i32, < C
};

}  // namespace nmoe
