#include "ops/contracts/gradient.h"

#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

void check(const AddGradient& args) {
  const Tensor &product = args.product, &sum = args.sum, &matrices = args.random.matrices;
  NMOE_CHECK(product.shape().rank() == 3 && is_stat(product.dtype()) && is(sum, DType::kBF16, product.shape()),
             "a product {} {} added to gradients {} {}", dtype_name(product.dtype()), product.shape(),
             dtype_name(sum.dtype()), sum.shape());
  NMOE_CHECK(is(args.offsets, DType::kI32, {product.dim(0) + 1}), "offsets {} {} of {} experts",
             dtype_name(args.offsets.dtype()), args.offsets.shape(), product.dim(0));
  NMOE_CHECK(args.random.first == 0 && (!args.random.key.defined() || is_one(args.random.key, DType::kI64)) &&
                 (!matrices.defined() || is(matrices, DType::kI32, {product.dim(0)})),
             "random bits of {} experts from element {} on, matrices {}", product.dim(0), args.random.first,
             matrices.shape());
}

}  // namespace nmoe
