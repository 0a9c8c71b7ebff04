// Memory-bound: of n domains 2 n bytes of an element are read, 2 written.
#include "ops/cuda/kernels/ranks/sum_halves.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/peer_memory.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kHalvesThreads = 256;

// A thread has eight elements.
__global__ void __launch_bounds__(kHalvesThreads)
    sum_halves_kernel(PeerPointers<__nv_bfloat16> x, __nv_bfloat16* target, int64_t num_domains, int64_t size,
                      bool vector) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kHalvesThreads + threadIdx.x) * 8;
  if (i >= size) return;
  vector = vector && i + 8 <= size;
  float sum[8];
  load8(x.at[0], i, size, vector, sum);
  for (int64_t domain = 1; domain < num_domains; ++domain) {
    float more[8];
    load8(x.at[domain], i, size, vector, more);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += more[j];
  }
  store8(target, i, size, vector, sum);
}

}  // namespace

void sum_halves(Context& ctx, std::span<const Tensor> values, const Tensor& target) {
  NMOE_CHECK(!values.empty() && std::ssize(values) <= kMaxPeers, "{} values are added", values.size());
  const int64_t size = target.num_elements();
  PeerPointers<__nv_bfloat16> pointers{};
  bool vector = aligned16(target.raw());
  for (size_t i = 0; i < values.size(); ++i) {
    pointers.at[i] = values[i].data<__nv_bfloat16>();
    vector = vector && aligned16(pointers.at[i]);
  }
  sum_halves_kernel<<<grid_size(ceil_div(size, int64_t{kHalvesThreads} * 8)), kHalvesThreads, 0, ctx.stream>>>(
      pointers, target.data<__nv_bfloat16>(), std::ssize(values), size, vector);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
