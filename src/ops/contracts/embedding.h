// Look-up of embedding rows by token id. Letters and conventions: ops/ops.h.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

struct EmbeddingForward {
  Tensor ids;    // [T] i32
  Tensor table;  // [V, D]
  Tensor y;      // = [T, D]
};
struct EmbeddingBackward {
  Tensor ids;     // [T] i32
  Tensor dy;      // [T, D]
  Tensor dtable;  // += [V, D] stat
};

}  // namespace nmoe
