#include "ops/cuda/sm90/tile_scheduler.cuh"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kThreads = 256;

// A warp a group: its place is the number of groups that come before it.
__global__ void __launch_bounds__(kThreads)
    order_kernel(const int32_t* offsets, int num_groups, int* order, int* tiles_taken) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *tiles_taken = 0;
  const int group = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
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

void order_longest_first(Context& ctx, Tensor offsets, Tensor order, Tensor tiles_taken) {
  const int64_t num_groups = order.dim(0);
  order_kernel<<<grid_size(ceil_div<int64_t>(num_groups, kThreads / kWarp)), kThreads, 0, ctx.stream>>>(
      offsets.data<int32_t>(), static_cast<int>(num_groups), order.data<int32_t>(), tiles_taken.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
