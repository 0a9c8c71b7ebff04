#include "ops/cuda/sm90/tile_scheduler.cuh"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kThreads = 256;

// A warp a group: its place is the number of groups that come before it.
__global__ void __launch_bounds__(kThreads)
    order_kernel(const int32_t* offsets, int num_groups, int* order, int* counters, int num_counters) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), group = thread / kWarp;
  for (int i = thread; i < num_counters; i += static_cast<int>(gridDim.x * blockDim.x)) counters[i] = 0;
  if (group >= num_groups) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, rows = offsets[group + 1] - offsets[group];
  int place = 0;
  for (int other = lane; other < num_groups; other += kWarp) {
    const int other_rows = offsets[other + 1] - offsets[other];
    place += other_rows > rows || (other_rows == rows && other < group);
  }
  place = __reduce_add_sync(kAllLanes, place);
  if (lane == 0) order[place] = group;
}

}  // namespace

void order_longest_first(Context& ctx, Tensor offsets, const TileOrder& order) {
  const int64_t num_groups = order.order.dim(0);
  order_kernel<<<grid_size(ceil_div<int64_t>(num_groups, kThreads / kWarp)), kThreads, 0, ctx.stream>>>(
      offsets.data<int32_t>(), static_cast<int>(num_groups), order.order.data<int32_t>(),
      order.counters.data<int32_t>(), static_cast<int>(order.counters.num_elements()));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
