#pragma once

#include "tensor/tensor.h"

namespace nmoe {

// Rows of a pass for which the likelihood of a following token is computed: L pairs of a row and a token; a row may be
// in several.
struct ScoredRows {
  Tensor rows;         // [L] i32: indices among the pass's rows
  Tensor targets;      // [L] i32: the token that follows the row
  Tensor losses;       // [L] stat =: its loss in nats, over all of V
  Tensor predictions;  // [L] i32 =: the likeliest token, the lowest id of several
};

}  // namespace nmoe
