// What the operations of experts' layers have in common: rows times their experts' weights.
#pragma once

#include "ops/contracts/linear.h"

namespace nmoe::cuda {

// Every engine of grouped products (plans/grouped_linear.h) computes it its own way.
struct ExpertProduct {
  OperandRows rows;       // [R, in]; over_out: [R, out]. Picked by an index only for engines that round them
  Tensor w;               // [E, out, in]
  bool over_out = false;  // which of the weights' dimensions is summed over
  Tensor offsets;         // [E + 1] i32
  Tensor result;          // = [R, out]; over_out: [R, in]
  OperandRounding rounding = {};
};

inline ExpertProduct product_of(const GroupedLinearForward& args) {
  return {.rows = args.x, .w = args.w, .offsets = args.offsets, .result = args.y, .rounding = args.rounding};
}
inline ExpertProduct product_of(const GroupedLinearBackwardInput& args) {
  return {.rows = dy_of(args),
          .w = args.w,
          .over_out = true,
          .offsets = args.offsets,
          .result = args.dx,
          .rounding = args.rounding};
}
// Of the layer before an activation, pre.
inline ExpertProduct product_of(const GroupedActivationForward& args) {
  return {.rows = args.x, .w = args.w, .offsets = args.offsets, .result = args.pre, .rounding = args.rounding};
}
// Of the layer behind one, to gradients dh [R, F] of what it made.
inline ExpertProduct product_of(const GroupedActivationBackward& args, Tensor dh) {
  return {
      .rows = args.dy, .w = args.w, .over_out = true, .offsets = args.offsets, .result = dh, .rounding = args.rounding};
}

}  // namespace nmoe::cuda
