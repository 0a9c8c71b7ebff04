// What rounding loses: the largest magnitudes of matrices, or of experts' rows, where these have a scale.
#pragma once

#include <cstdint>

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

inline Tensor plan(Planner& to, const MeasureRounding& args) {
  if (args.format != OperandFormat::kNvFp4) return {};
  return to.scope.allocate(DType::kF32, {args.offsets.defined() ? args.offsets.dim(0) - 1 : args.x.dim(0)});
}

struct ProductMagnitudes {
  Tensor x, w;  // [E] F32
};
inline ProductMagnitudes plan(Planner& to, const MeasureProduct& args) {
  if (args.format != OperandFormat::kNvFp4) return {};
  const Tensor x = to.scope.allocate(DType::kF32, {args.w.dim(0)});
  return {x, to.scope.allocate(DType::kF32, {args.w.dim(0)})};
}

}  // namespace nmoe::cuda
