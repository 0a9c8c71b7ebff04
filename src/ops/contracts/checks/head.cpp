#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

void check(const HeadLoss& args) {
  const Tensor &x = args.x, &w = args.w;
  NMOE_CHECK(x.shape().rank() == 2 && w.shape().rank() == 2 && w.dim(0) > 0 && w.dim(1) == x.dim(1) &&
                 is_act(x.dtype()) && w.dtype() == x.dtype() && is(args.targets, DType::kI32, {x.dim(0)}) &&
                 is_stat(args.losses.dtype()) && args.losses.shape() == Shape({x.dim(0)}) &&
                 (!args.predictions.defined() || is(args.predictions, DType::kI32, {x.dim(0)})),
             "head over x {} {} and w {} {}: targets {}, losses {}, predictions {}", dtype_name(x.dtype()), x.shape(),
             dtype_name(w.dtype()), w.shape(), args.targets.shape(), args.losses.shape(), args.predictions.shape());
  for (const Tensor& of_tokens : {args.weights, args.z_losses}) {
    NMOE_CHECK(!of_tokens.defined() || (is_stat(of_tokens.dtype()) && of_tokens.shape() == args.losses.shape()),
               "weights {} or z-losses {} of losses {}", args.weights.shape(), args.z_losses.shape(),
               args.losses.shape());
  }
  NMOE_CHECK(args.dx.defined() ? is(args.dx, x.dtype(), x.shape()) && is_one(args.grad_scale, DType::kF64) &&
                                     (!args.dw.defined() || (is_stat(args.dw.dtype()) && args.dw.shape() == w.shape()))
                               : !args.dw.defined(),
             "head's gradients dx {} and dw {} with a scale {}, of x {} and w {}", args.dx.shape(), args.dw.shape(),
             args.grad_scale.shape(), x.shape(), w.shape());
  NMOE_CHECK(is_one_if_defined(args.z_scale, DType::kF64), "a scale {} of z-losses", args.z_scale.shape());
}

void check(const LogitSums& args) {
  const Tensor& logits = args.logits;
  NMOE_CHECK(logits.shape().rank() == 2 && is_stat(logits.dtype()) && logits.dim(1) > 0 &&
                 is(args.sums, logits.dtype(), {logits.dim(0), 3}),
             "sums {} {} of logits {} {}", dtype_name(args.sums.dtype()), args.sums.shape(), dtype_name(logits.dtype()),
             logits.shape());
}

}  // namespace nmoe
