// Where routed copies of tokens go, and their way there and back. Letters and conventions: ops/ops.h.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

// Rows are sorted by (expert, token, choice). Shared by dispatch, combine and both backwards. Pure integers: the same
// selection always lands on the same rows.
struct MoePlan {
  Tensor offsets;  // [E + 1] i32: expert e owns rows [offsets[e], offsets[e + 1])
  Tensor row_of;   // [T, K] i32: the row of a copy
};

struct BuildMoePlan {
  Tensor top_idx;  // [T, K] i32
  MoePlan plan;    // =
  Tensor counts;   // [E] i32 += rows of each expert; undefined: not wanted
};

// Dispatch gathers tokens to their rows; combine sums a token's K rows in the order of its choices.
struct MoeDispatch {
  Tensor x;  // [T, D]
  MoePlan plan;
  Tensor rows;  // = [R, D]
};
struct MoeCombine {
  Tensor rows;  // [R, D]
  MoePlan plan;
  Tensor y;  // = [T, D]
  bool accumulate = false;
};

// The same for one number a copy.
struct MoeDispatchWeights {
  Tensor weights;  // [T, K] stat
  MoePlan plan;
  Tensor row_weight;  // = [R] stat
};
struct MoeCombineWeights {
  Tensor row_weight;  // [R] stat
  MoePlan plan;
  Tensor weights;  // = [T, K] stat
};

}  // namespace nmoe
