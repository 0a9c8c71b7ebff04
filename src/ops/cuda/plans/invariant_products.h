// Batch-invariant products (Arithmetic in ops/device.h). Few rows have kernels of their own, which take no scratch
// (kernels/products/invariant_products.h). Where there are many, training's kernels are faster, and have the same bits:
// in BF16 on Hopper either sums an element as one chain over ascending k, and rounds it once
// (tests/ops/cuda/one_order_test.cpp).
#pragma once

#include <cstdint>

#include "ops/cuda/plans/grouped_linear.h"

namespace nmoe::cuda {

// Rows from which on training's kernels multiply: of a plain product, and of an expert on average.
constexpr int64_t kTrainingRows = 512, kTrainingExpertRows = 64;
// cuBLASLt's order is known of sums from this length on.
constexpr int64_t kLeastTrainingDepth = 64;

inline bool takes_training_kernels(const KernelSet& kernels, const Tensor& x, const Tensor& w) {
  return kernels.has_sm90() && x.dim(0) >= kTrainingRows && x.dim(1) >= kLeastTrainingDepth &&
         whole_rows(x.dtype(), x.dim(1), w.dim(0));
}
inline bool takes_training_kernels(const KernelSet& kernels, const LinearForward& args) {
  return takes_training_kernels(kernels, args.x, args.w);
}
inline bool takes_training_kernels(const KernelSet& kernels, const LinearActivationForward& args) {
  return takes_training_kernels(kernels, args.x, args.w);
}
inline bool takes_training_kernels(const KernelSet& kernels, const OperandRows& x, const Tensor& w) {
  return kernels.has_sm90() && x.num_rows() >= kTrainingExpertRows * w.dim(0) &&
         whole_rows(x.source.dtype(), x.width(), w.dim(1));
}
inline bool takes_training_kernels(const KernelSet& kernels, const GroupedLinearForward& args) {
  return takes_training_kernels(kernels, OperandRows(args.x), args.w);
}
inline bool takes_training_kernels(const KernelSet& kernels, const GroupedActivationForward& args) {
  return takes_training_kernels(kernels, args.x, args.w);
}

}  // namespace nmoe::cuda
