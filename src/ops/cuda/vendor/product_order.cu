#include <algorithm>

#include "ops/cuda/kernel_set.h"
#include "ops/cuda/kernels/products/invariant_products.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/vendor/product_order.h"
#include "ops/cuda/vendor/random_values.cuh"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 256;
constexpr int64_t kLeastRows = 16;
constexpr int64_t kAlignment = 256;

// Rows of x [rows, depth], whose second halves are their first ones times `sign`.
__global__ void __launch_bounds__(kThreads)
    fill_halves_kernel(__nv_bfloat16* x, int64_t rows, int64_t depth, float sign, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * depth; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / depth, k = i % depth, half = depth / 2;
    const float value = random_value(static_cast<uint64_t>(row * depth + k % half), seed);
    x[i] = __float2bfloat16(k < half ? value : sign * value);
  }
}

__global__ void __launch_bounds__(kThreads)
    count_different_kernel(const uint16_t* a, const uint16_t* b, int64_t size, int* count) {
  int different = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += int64_t{gridDim.x} * kThreads) {
    different += a[i] != b[i] ? 1 : 0;
  }
  if (different > 0) atomicAdd(count, different);
}

// A product that shows a problem's order, and where its operands are: bytes from the workspace's beginning.
struct Sample {
  GemmProblem problem;
  int64_t a = 0, b = 0, own = 0, others = 0, count = 0, workspace = 0;
};

// With up to so many rows and columns. The columns leave the alignment of the result's rows what it is.
Sample sample_of(const GemmProblem& problem, int64_t most) {
  Sample sample{.problem = problem};
  GemmProblem& small = sample.problem;
  small.rows = std::min(problem.rows, most);
  if (problem.cols > most) small.cols = most + problem.cols % kLeastRows;
  int64_t used = 0;
  const auto place = [&](int64_t elements, DType dtype, uint32_t alignment) {
    const int64_t begin = used + alignment % kAlignment;
    used = (begin + elements * static_cast<int64_t>(dtype_bytes(dtype)) + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  sample.a = place(small.rows * small.depth, small.input, small.align_a);
  sample.b = place(small.cols * small.depth, small.input, small.align_b);
  sample.own = place(small.rows * small.cols, small.output, small.align_d);
  sample.others = place(small.rows * small.cols, small.output, small.align_d);
  sample.count = place(1, DType::kI32, kAlignment);
  sample.workspace = used;
  small.workspace_bytes = problem.workspace_bytes - used;
  return sample;
}

}  // namespace

bool has_one_order(const GemmProblem& problem) {
  constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};
  constexpr uint32_t kVector = 16;
  return kKernels.has_sm90() && is_forward(problem) && !problem.device_scales && problem.depth % 8 == 0 &&
         problem.align_a >= kVector && problem.align_b >= kVector;
}

SumOrder order_of_sums(Context& ctx, const GemmProblem& problem, const ProductAlgorithm& algorithm, void* workspace) {
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
  NMOE_CUDA_CHECK(cudaStreamIsCapturing(ctx.stream, &recording));
  if (recording != cudaStreamCaptureStatusNone) return SumOrder::kUnknown;
  int64_t most = kCheckedRows;
  while (most > kLeastRows && sample_of(problem, most).problem.workspace_bytes < 0) most /= 2;
  const Sample sample = sample_of(problem, most);
  const GemmProblem& small = sample.problem;
  if (small.workspace_bytes < 0) return SumOrder::kNotMade;
  const auto plan = ctx.cublas_lt.plan_with(small, algorithm);
  if (!plan) return SumOrder::kNotMade;

  char* const memory = static_cast<char*>(workspace);
  const Tensor x(memory + sample.a, small.input, {small.rows, small.depth});
  const Tensor w(memory + sample.b, small.input, {small.cols, small.depth});
  const Tensor own(memory + sample.own, small.output, {small.rows, small.cols});
  int* const count = reinterpret_cast<int*>(memory + sample.count);
  fill_halves_kernel<<<kBlocks, kThreads, 0, ctx.stream>>>(x.data<__nv_bfloat16>(), small.rows, small.depth, 1.0F, 0);
  fill_halves_kernel<<<kBlocks, kThreads, 0, ctx.stream>>>(w.data<__nv_bfloat16>(), small.cols, small.depth, -1.0F, 1);
  NMOE_CUDA_CHECK(cudaMemsetAsync(count, 0, sizeof(int), ctx.stream));
  NMOE_CUDA_CHECK(cudaGetLastError());
  invariant_product(ctx, x, w, /*addend=*/{}, own);
  ctx.cublas_lt.multiply_by(
      *plan, small, {.a = x.raw(), .b = w.raw(), .d = memory + sample.others, .workspace = memory + sample.workspace},
      ctx.stream);
  count_different_kernel<<<kBlocks, kThreads, 0, ctx.stream>>>(
      static_cast<const uint16_t*>(own.raw()), reinterpret_cast<const uint16_t*>(memory + sample.others),
      own.num_bytes() / static_cast<int64_t>(sizeof(uint16_t)), count);
  NMOE_CUDA_CHECK(cudaGetLastError());
  int different = 0;
  NMOE_CUDA_CHECK(cudaMemcpyAsync(&different, count, sizeof(different), cudaMemcpyDeviceToHost, ctx.stream));
  NMOE_CUDA_CHECK(cudaStreamSynchronize(ctx.stream));
  return different == 0 ? SumOrder::kSame : SumOrder::kOther;
}

}  // namespace nmoe::cuda
