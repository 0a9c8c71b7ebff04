// Times algorithms of dense products against the heuristic's first choice (`n bench tune`). Never part of a run.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "ops/cuda/vendor/cublaslt.h"
#include "ops/products/products.h"

namespace nmoe::cuda {

// ops/products/products.h. Of the products in `uses`, those that make up more than a thousandth of the time of
// all and are not of blocks, on random operands that rotate through more memory than the L2 cache has. A choice is an
// algorithm that is faster by more than measurements vary, gives the same bits in repetitions and, but for rounding,
// the heuristic's values; of a forward product it keeps the order of sums (product_order.h). The device is
// current and has room for one product's operands a few times; the context is of it, and its stream is not used.
ProductTuning tune_products(const Context& ctx, const std::vector<ProductUse>& uses,
                            const std::function<void(const TunedProduct&)>& told);

}  // namespace nmoe::cuda
