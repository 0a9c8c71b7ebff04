// Products of stacks of fp32 matrices through cuBLASLt.
#pragma once

#include <cstdint>

#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// For every i < batch: d[i] = alpha * op(a[i]) op(b[i]) + beta * c[i]. All row-major and dense, one after another.
struct BatchedGemm {
  int64_t batch = 1, m = 0, n = 0, k = 0;  // > 0
  const float* a = nullptr;                // [batch, m, k], or [batch, k, m] with transpose_a
  const float* b = nullptr;                // [batch, k, n], or [batch, n, k] with transpose_b
  const float* c = nullptr;                // [batch, m, n]
  float* d = nullptr;                      // = [batch, m, n]; overlaps none of the others
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0F, beta = 0.0F;
  bool tf32 = false;  // factors are rounded to 11 bits, for the tensor cores; sums stay fp32
};

// What `workspace` of a product has to hold.
constexpr int64_t kGemmWorkspaceBytes = int64_t{16} << 20;

// Enqueues the product. The same shapes give the same bits: partial products are not added by atomics. Pointers are
// multiples of 16 bytes.
void batched_gemm(const Context& ctx, const BatchedGemm& product, void* workspace);

}  // namespace nmoe::cuda
