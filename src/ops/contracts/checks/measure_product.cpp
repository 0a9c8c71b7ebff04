#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

void check(const MeasureProduct& args) {
  const Shape& w = args.w.shape();
  NMOE_CHECK(w.rank() == 3 && args.x.source.shape().rank() == 2 && args.x.width() == w[args.over_out ? 1 : 2] &&
                 is_act(args.w.dtype()) && args.x.source.dtype() == args.w.dtype() && is(args.counts, DType::kF64, {5}),
             "counts {} of rows {} {} through {} {}", args.counts.shape(), dtype_name(args.x.source.dtype()),
             args.x.source.shape(), dtype_name(args.w.dtype()), w);
  NMOE_CHECK(args.offsets.defined() ? is(args.offsets, DType::kI32, {w[0] + 1}) : w[0] == 1, "{} matrices", w[0]);
  NMOE_CHECK(args.format != OperandFormat::kAct, "there are no such blocks");
}

}  // namespace nmoe
