// Sums over ranks in a fixed order, element by element: bound by the way to where the ranks' values are.
#pragma once

#include <algorithm>

#include "ops/cuda/primitives/peer_memory.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/context.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {

inline constexpr int kOrderedSumThreads = 512;

// Type: 16 bytes of what is added.
template <class T>
struct Packed;
template <>
struct Packed<float> {
  using Type = float4;
  static __device__ void add(float4& sum, const float4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }
};
template <>
struct Packed<double> {
  using Type = double2;
  static __device__ void add(double2& sum, const double2& x) { sum.x += x.x, sum.y += x.y; }
};
template <>
struct Packed<int32_t> {
  using Type = int4;
  static __device__ void add(int4& sum, const int4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }
};

// target [end - begin]. kVectors: [begin, end) in units of 16 bytes.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kOrderedSumThreads)
    ordered_sum_kernel(PeerPointers<T> x, T* target, bool accumulate, int64_t num_ranks, int64_t begin, int64_t end) {
  using Unit = std::conditional_t<kVectors, typename Packed<T>::Type, T>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kOrderedSumThreads;
  for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * kOrderedSumThreads + threadIdx.x; i < end; i += stride) {
    Unit& to = reinterpret_cast<Unit*>(target)[i - begin];
    Unit sum = accumulate ? to : reinterpret_cast<const Unit*>(x.at[0])[i];
    for (int64_t rank = accumulate ? 0 : 1; rank < num_ranks; ++rank) {
      const Unit value = reinterpret_cast<const Unit*>(x.at[rank])[i];
      if constexpr (kVectors) {
        Packed<T>::add(sum, value);
      } else {
        sum += value;
      }
    }
    to = sum;
  }
}

// target [end - begin] = or += x.at[0], plus x.at[1] and so on, of elements [begin, end) of each; not empty. `target`
// may be those elements of one of them. max_blocks: contracts/exchange.h.
template <class T>
void ordered_sum(Context& ctx, const PeerPointers<T>& x, T* target, bool accumulate, int64_t num_ranks, int64_t begin,
                 int64_t end, int64_t max_blocks = 0) {
  constexpr int64_t kUnit = 16 / sizeof(T);
  bool vectors = begin % kUnit == 0 && end % kUnit == 0 && aligned16(target);
  for (int64_t rank = 0; rank < num_ranks; ++rank) vectors = vectors && aligned16(x.at[rank]);
  const int64_t unit = vectors ? kUnit : 1;
  const int64_t blocks = std::min<int64_t>(ceil_div<int64_t>((end - begin) / unit, kOrderedSumThreads),
                                           max_blocks > 0 ? max_blocks : 4L * ctx.num_sms);
  const auto kernel = vectors ? ordered_sum_kernel<T, true> : ordered_sum_kernel<T, false>;
  kernel<<<grid_size(blocks), kOrderedSumThreads, 0, ctx.stream>>>(x, target, accumulate, num_ranks, begin / unit,
                                                                   end / unit);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
