// What tests of CUDA's optimizers share.
#pragma once

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {

class CudaOptimizerTest : public CudaTest {
 protected:
  Tensor f64(const std::vector<double>& numbers) {
    const Tensor x = pool_.zeros(DType::kF64, {static_cast<int64_t>(numbers.size())});
    for (size_t i = 0; i < numbers.size(); ++i) set(x, static_cast<int64_t>(i), numbers[i]);
    return x;
  }

  // A weight on the device: F32, or BF16 with its low part.
  struct Weight {
    Tensor w, low;
  };
  Weight weight(Tensor master, DType dtype) {
    if (dtype == DType::kF32) return {up(master), {}};
    const Weight result{tensors_.allocate(dtype, master.shape()), tensors_.allocate(DType::kI16, master.shape())};
    gpu().split_weight({up(master), result.w, result.low});
    return result;
  }
  Tensor master(const Weight& weight) {
    const Tensor joined = tensors_.allocate(DType::kF32, weight.w.shape());
    gpu().join_weight({weight.w, weight.low, joined});
    return down(joined);
  }
};

}  // namespace nmoe::test
