// Biases: a partial gradient for each chunk of rows.
#pragma once

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

// [chunks, N] F32
inline Tensor plan(Planner& to, const BiasBackward& args) {
  return to.scope.allocate(DType::kF32, {blocks_for(args.dy.dim(0), kBiasChunkRows), args.dy.dim(1)});
}

}  // namespace nmoe::cuda
