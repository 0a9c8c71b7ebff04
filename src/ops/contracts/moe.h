// Where the routed copies of tokens go, and how they get there and back. Letters and conventions: ops/ops.h.
#pragma once

#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

// Rows are sorted by (expert, token, choice). Shared by dispatch, combine and their backwards. Computed in integers
// only: the same selection always gives the same rows.
struct MoePlan {
  Tensor offsets;  // [E + 1] i32: expert e owns rows [offsets[e], offsets[e + 1])
  Tensor row_of;   // [T, K] i32: the row of a copy; -1: it has none
  // If not 0, the plan is for a part of all rows, which begins here: offsets count from here, row_of from the first row
  // of all. Dispatch then ignores copies whose rows are before the part or beyond the end of its result, and does
  // nothing if the part is empty.
  int64_t first_row = 0;
  Tensor token_of = {};  // [R] i32: the token of a row; undefined: not wanted
};

// With `part_sizes`, top_idx consists of W equal parts, of which only the first part_sizes[w] tokens are valid. Choices
// that are -1, and those of tokens that are not valid, have no row.
struct BuildMoePlan {
  Tensor top_idx;          // [T, K] i32
  MoePlan plan;            // =
  Tensor counts;           // [E] i32 += rows of each expert; undefined: not wanted
  Tensor part_sizes = {};  // [W] i32; undefined: all tokens are valid, and every choice is an expert
};

// Cuts the rows of a plan into parts: first `capacity` rows, then `chunk` rows at a time.
struct DivideMoeRows {
  Tensor offsets;  // [E + 1] i32
  int64_t capacity = 0, chunk = 0;
  Tensor parts;  // = [P, E + 1] i32: the offsets of each part, counted from its first row
};

// Dispatch copies each token to its rows, however many it has. Combine sums the K rows of a token, which must all
// exist, in the order of its choices.
struct MoeDispatch {
  Tensor x;  // [T, D]; undefined: the values of `codes`
  MoePlan plan;
  Tensor rows;              // = [R, D]
  RowCodes codes = {};      // [T, D], instead of x
  RowCodes row_codes = {};  // = [R, D], with codes: each row's; undefined: not wanted
};
struct MoeCombine {
  Tensor rows;  // [R, D]
  MoePlan plan;
  Tensor y;  // = [T, D]
  bool accumulate = false;
};

// The same for one number per copy.
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
