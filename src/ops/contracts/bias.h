// Biases of linear layers. N values a row.
#pragma once

#include "tensor/tensor.h"

namespace nmoe {

// y[t] = x[t] + bias, rounded once. As the addend of a product (LinearForward::addend) it becomes part of its sum.
struct BiasForward {
  Tensor x;     // [T, N], may be y; undefined: 0
  Tensor bias;  // [N] stat
  Tensor y;     // = [T, N] act
};

// Rows between two partial sums of a bias's gradient.
constexpr int64_t kBiasChunkRows = 256;

// dbias += the sum of dy over rows. Its order, on every device: rows are cut into chunks of kBiasChunkRows; a chunk's
// are added one after the other, from 0 on, in stat; then the chunks' sums are, and their sum is added to dbias.
struct BiasBackward {
  Tensor dy;     // [T, N], apart
  Tensor dbias;  // [N] stat +=
};

}  // namespace nmoe
