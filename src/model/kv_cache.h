// The key/value cache of earlier tokens, with which a later token costs one row of work: for each layer, tables of
// slots (one sequence each) by positions.
//
// Z slots, C positions (capacity), T rows of one cached forward.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// One layer's, as its parts describe it (CacheSpec in model/spec/part.h).
struct LayerCache {
  std::vector<Tensor> tensors;  // [Z, C, width] each
};

struct KvCache {
  int64_t num_slots = 0;
  int64_t capacity = 0;
  std::vector<LayerCache> layers;
};

// Tokens to run through the model, each continuing the sequence in its slot; several may have the same slot. The
// positions that a row attends to, from 0 to its own in its slot, must be in the cache or among these rows.
struct CachedRows {
  Tensor tokens;     // [T] i32
  Tensor slots;      // [T] i32, < Z
  Tensor positions;  // [T] i32, < C
};

}  // namespace nmoe
