#include "ops/cuda/kernels/recurrent/chunk_table.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kTableThreads = 1024;

// The sum of the values of threads before this one, and in `total` of all.
__device__ int sum_before(int value, int& total) {
  __shared__ int warp_sums[kTableThreads / kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int through = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int below = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += below;
  }
  __syncthreads();  // the sums of the call before may still be read
  if (lane == kWarp - 1) warp_sums[warp] = through;
  __syncthreads();
  int before = through - value;
  total = 0;
  for (int i = 0; i < kTableThreads / kWarp; ++i) {
    if (i < warp) before += warp_sums[i];
    total += warp_sums[i];
  }
  return before;
}

// One block: a thread has a document at a time.
__global__ void __launch_bounds__(kTableThreads) chunks_kernel(Documents of, Chunk* chunks, int* firsts) {
  const int num_tokens = of.num_seqs * of.seq_len;
  int done = 0;
  for (int first = 0; first < of.count && of.bounds[first] < num_tokens; first += kTableThreads) {
    const int document = first + static_cast<int>(threadIdx.x);
    const bool exists = document < of.count;
    const int begin = exists ? of.bounds[document] : 0, end = exists ? of.bounds[document + 1] : 0;
    int total;
    int i = done + sum_before(ceil_div(end - begin, of.chunk), total);
    done += total;
    if (begin < end && begin % of.seq_len == 0) firsts[begin / of.seq_len] = i;
    for (int t = begin; t < end; t += of.chunk, ++i) chunks[i] = of.make(t, begin, end);
  }
  if (threadIdx.x == 0) firsts[of.num_seqs] = done;
}

constexpr int kPartThreads = 256;

// A warp has a head of one gradient, and its lanes every 32nd chunk.
__global__ void __launch_bounds__(kPartThreads)
    add_parts_kernel(const float* parts, const int* count, int64_t most_chunks, int H, HeadGradients gradients) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.x) * (kPartThreads / kWarp) + warp;
  if (head >= H) return;
  const float* const own = parts + (int64_t{blockIdx.y} * H + head) * most_chunks;
  float sum = 0.0F;
  for (int i = lane; i < *count; i += kWarp) sum += own[i];
  sum = warp_sum(sum);
  float* const gradient = blockIdx.y == 0 ? gradients.first : blockIdx.y == 1 ? gradients.second : gradients.third;
  if (lane == 0) gradient[head] += sum;
}

}  // namespace

void fill_chunks(Context& ctx, const Documents& documents, Chunk* chunks, int* firsts) {
  chunks_kernel<<<1, kTableThreads, 0, ctx.stream>>>(documents, chunks, firsts);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void add_chunk_parts(Context& ctx, const Tensor& parts, const int* count, const HeadGradients& gradients) {
  const int64_t heads = parts.dim(1);
  add_parts_kernel<<<dim3(grid_size(ceil_div(heads, int64_t{kPartThreads / kWarp})), short_grid_size(parts.dim(0))),
                     kPartThreads, 0, ctx.stream>>>(parts.data<float>(), count, parts.dim(2), static_cast<int>(heads),
                                                    gradients);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
