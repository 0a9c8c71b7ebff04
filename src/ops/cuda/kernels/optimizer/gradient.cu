// Adds products to experts' gradients in BF16, rounded. Memory-bound: 4 bytes of the product and 2 of the gradient are
// read, 2 written. A thread has eight elements, which are one group of random bits where an expert's size is a multiple
// of eight; other sizes take the bits of each element by itself.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/random_rounding.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256, kValues = 8;

struct Sums {
  const float* product;
  const int32_t* offsets;
  __nv_bfloat16* sum;
  int64_t size;  // of an expert's
  bool accumulate, vector;
  const int64_t* key;  // null: to nearest
  uint64_t stream;
  const int32_t* matrices;  // null: experts in order
};

// Blocks (part, expert).
__global__ void __launch_bounds__(kThreads) add_gradient_kernel(Sums p) {
  const auto expert = static_cast<int64_t>(blockIdx.y);
  if (p.accumulate && p.offsets[expert] == p.offsets[expert + 1]) return;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kValues;
  if (i >= p.size) return;
  __nv_bfloat16* const sum = p.sum + expert * p.size;
  float value[kValues];
  load8(p.product + expert * p.size, i, p.size, p.vector, value);
  if (p.accumulate) {
    float before[kValues];
    load8(sum, i, p.size, p.vector, before);
#pragma unroll
    for (int j = 0; j < kValues; ++j) value[j] = before[j] + value[j];
  }
  if (p.key == nullptr) {
    store8(sum, i, p.size, p.vector, value);
    return;
  }
  const RandomBits bits{.key = static_cast<uint64_t>(*p.key),
                        .stream = p.stream,
                        .index = (p.matrices == nullptr ? expert : p.matrices[expert]) * p.size + i};
  store8_at_random(sum, i, p.size, p.vector, bits, value);
}

}  // namespace

void add_gradient(Context& ctx, const AddGradient& args) {
  if (args.sum.num_elements() == 0) return;
  const MomentRounding& random = args.random;
  const int64_t num_experts = args.sum.dim(0), size = args.sum.num_elements() / num_experts;
  const Sums sums{.product = args.product.data<float>(),
                  .offsets = args.offsets.data<int32_t>(),
                  .sum = args.sum.data<__nv_bfloat16>(),
                  .size = size,
                  .accumulate = args.accumulate,
                  .vector = can_vectorise(size, args.product, args.sum),
                  .key = random.key.data_or_null<int64_t>(),
                  .stream = random.stream,
                  .matrices = random.matrices.data_or_null<int32_t>()};
  const dim3 grid(grid_size(ceil_div(size, int64_t{kThreads} * kValues)), short_grid_size(num_experts));
  add_gradient_kernel<<<grid, kThreads, 0, ctx.stream>>>(sums);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
