#include "ops/cuda/kernels/recurrent/slot_rows.h"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;

// begins[slot + 1] and `order` of plans/slot_rows.h: block i has slot i - 1. Rows of slots that do not exist are in
// none.
__global__ void __launch_bounds__(kThreads)
    order_kernel(const int32_t* slots, int num_rows, int num_slots, int32_t* begins, int32_t* order) {
  __shared__ int warp_counts[kThreads / kWarp];
  const int slot = static_cast<int>(blockIdx.x) - 1;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int below = 0;
  for (int t = static_cast<int>(threadIdx.x); t < num_rows; t += kThreads) below += max(slots[t], -1) < slot ? 1 : 0;
  int next = block_sum(below);
  if (threadIdx.x == 0) begins[slot + 1] = next;
  for (int first = 0; first < num_rows; first += kThreads) {
    const int t = first + static_cast<int>(threadIdx.x);
    const bool is_own = t < num_rows && max(slots[t], -1) == slot;
    const unsigned own = __ballot_sync(kAllLanes, is_own);
    __syncthreads();
    if (lane == 0) warp_counts[warp] = __popc(own);
    __syncthreads();
    int place = next + __popc(own & ((1U << lane) - 1));
    for (int other = 0; other < kThreads / kWarp; ++other) {
      if (other < warp) place += warp_counts[other];
      next += warp_counts[other];
    }
    if (is_own) order[place] = t;
  }
  if (slot + 1 == num_slots && threadIdx.x == 0) begins[num_slots + 1] = next;
}

}  // namespace

void order_by_slots(Context& ctx, const Tensor& slots, int64_t num_slots, const SlotRows& rows) {
  order_kernel<<<grid_size(num_slots + 1), kThreads, 0, ctx.stream>>>(
      slots.data<int32_t>(), static_cast<int>(slots.dim(0)), static_cast<int>(num_slots), rows.begins.data<int32_t>(),
      rows.order.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
