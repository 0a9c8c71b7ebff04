// Gradients of experts' weights that are kept in BF16. Letters and conventions: ops/ops.h.
#pragma once

#include "ops/contracts/optimizer.h"
#include "tensor/tensor.h"

namespace nmoe {

// Adds what one product (GroupedLinearBackwardWeight) gives to the gradient of stacked experts: the gradient is widened
// to F32, the product is added in F32, once, and the sum is rounded to BF16. So the order of sums is that of products:
//   sum = round(sum + product), or round(product) without `accumulate`.
// With a key it is rounded stochastically (ops/moment_rounding.h), by the bits of the element in the whole tensor, else
// to nearest, ties to even. What is not finite stays so. With `accumulate`, experts without rows are neither read nor
// written; nothing would change. The same bits on every device, from the same products.
struct AddGradient {
  Tensor product;  // [E, rows, cols] stat
  Tensor offsets;  // [E + 1] i32, the product's: expert e had rows [offsets[e], offsets[e + 1])
  Tensor sum;      // = [E, rows, cols] BF16, with accumulate +=
  bool accumulate = false;
  MomentRounding random = {};  // `matrices`: the experts' numbers; `stream`: different for each product of a step
};

}  // namespace nmoe
