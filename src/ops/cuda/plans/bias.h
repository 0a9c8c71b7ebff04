// Biases: a partial gradient for each chunk of rows.
#pragma once

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

// [chunks, N] F32
inline Tensor plan(Planner& to, const BiasBackward& args) {
  return to.scope.allocate(DType::kF32, {blocks_for(args.dy.dim(0), kBiasChunkRows), args.dy.dim(1)});
}

// [chunks of all experts' rows, at most; out] F32
inline Tensor plan(Planner& to, const ExpertBiasBackward& args) {
  const int64_t chunks = args.dy.num_rows() / kBiasChunkRows + args.dvalues.dim(0);
  return to.scope.allocate(DType::kF32, {chunks, args.dy.width()});
}

}  // namespace nmoe::cuda
