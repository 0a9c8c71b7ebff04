// Convolutions: partial gradients of taps and bias for each chunk of rows.
#pragma once

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

constexpr int64_t kMostTaps = 4;  // that kernels hold rows of in registers

inline void check_taps(const Tensor& weight) {
  NMOE_CHECK(weight.dim(1) >= 2 && weight.dim(1) <= kMostTaps, "a convolution of {} taps: 2 to {} are possible",
             weight.dim(1), kMostTaps);
}

struct NoScratch {};
inline NoScratch plan(Planner& /*to*/, const ConvolutionForward& args) {
  check_taps(args.in.weight);
  return {};
}
inline NoScratch plan(Planner& /*to*/, const CachedConvolution& args) {
  check_taps(args.weight);
  return {};
}
// [chunks, K + 1, W] F32: of each tap, and last of the bias
inline Tensor plan(Planner& to, const ConvolutionBackward& args) {
  check_taps(args.in.weight);
  const int64_t chunks = blocks_for(args.in.x.dim(0), kConvolutionChunkRows);
  return to.scope.allocate(DType::kF32, {chunks, args.in.weight.dim(1) + 1, args.in.x.dim(1)});
}

}  // namespace nmoe::cuda
