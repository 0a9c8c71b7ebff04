// RMSNorm forward: y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) per vector.
//
// One block a vector. Each thread sums the squares of every kThreads-th value, warps add up by shuffles and the
// first warp adds the warps' sums: an order fixed by D alone, so the bits do not depend on the device.
// Memory-bound: x is read twice (the second time from L2 for the sizes models use) and y written once.
#include <cuda_runtime.h>

#include "ops/cuda/check.h"
#include "ops/cuda/rms_norm.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
static_assert(kThreads % kWarp == 0 && kThreads / kWarp <= kWarp);

__device__ float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  return value;
}

// Every thread returns the sum over the block.
__device__ float block_sum(float value) {
  __shared__ float warp_sums[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_sum(value);
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  return warp_sum(lane < kThreads / kWarp ? warp_sums[lane] : 0.0F);
}

__global__ void __launch_bounds__(kThreads) rms_norm_forward_kernel(RmsNormForward args) {
  const int64_t row = blockIdx.x;
  const float* x = args.x + row * args.dim;
  float* y = args.y + row * args.dim;
  float squares = 0.0F;
  for (int64_t i = threadIdx.x; i < args.dim; i += kThreads) squares += x[i] * x[i];
  const float mean = block_sum(squares) / static_cast<float>(args.dim);
  const float rstd = 1.0F / sqrtf(mean + args.eps);
  for (int64_t i = threadIdx.x; i < args.dim; i += kThreads) y[i] = x[i] * rstd * args.gain[i];
  if (threadIdx.x == 0) args.rstd[row] = rstd;
}

}  // namespace

void rms_norm_forward(const RmsNormForward& args, cudaStream_t stream) {
  NMOE_CUDA_REQUIRE(args.num_vectors >= 0 && args.num_vectors <= INT32_MAX && args.dim > 0);
  if (args.num_vectors == 0) return;
  rms_norm_forward_kernel<<<static_cast<unsigned>(args.num_vectors), kThreads, 0, stream>>>(args);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
