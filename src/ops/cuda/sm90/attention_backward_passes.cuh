// Attention, backward: the kernels before and behind attention_backward.cuh's, memory-bound.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include <cstdint>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/gradient_rotation.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"

namespace nmoe::cuda::sm90 {

struct PrepareArgs {
  const __nv_bfloat16 *out, *dout;  // [T, H, Dv]
  const float* lse;                 // [B, H, S]
  const int32_t* first_keys;        // [B, S], or null
  float *lse2, *delta;              // [B, H, padded]
  int32_t* lows;                    // [B, padded], or null
  int32_t* counters;                // turns and the tickets behind them
  int64_t num_counters;
  int num_seqs, seq_len, padded, heads, window;
};
// kValueSize / 8 lanes a row of a head.
template <int kValueSize>
__global__ void __launch_bounds__(256) attention_prepare_kernel(const PrepareArgs a) {
  constexpr int kLanes = kValueSize / 8;
  const int64_t thread = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (thread < a.num_counters) a.counters[thread] = 0;
  const int64_t index = thread / kLanes;
  const int lane = static_cast<int>(thread % kLanes);
  const int head = static_cast<int>(index % a.heads);
  const int64_t place = index / a.heads;
  const int seq = static_cast<int>(place / a.padded), row = static_cast<int>(place % a.padded);
  const bool exists = seq < a.num_seqs && row < a.seq_len;
  float sum = 0.0F;
  if (exists) {
    const int64_t at = ((int64_t{seq} * a.seq_len + row) * a.heads + head) * kValueSize + lane * 8;
    const uint4 x = *reinterpret_cast<const uint4*>(a.out + at), y = *reinterpret_cast<const uint4*>(a.dout + at);
    const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(xs[i]));
      const float2 g = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(ys[i]));
      sum += f.x * g.x + f.y * g.y;
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane != 0 || seq >= a.num_seqs) return;
  const int64_t target = (int64_t{seq} * a.heads + head) * a.padded + row;
  a.delta[target] = sum;
  a.lse2[target] =
      exists ? a.lse[(int64_t{seq} * a.heads + head) * a.seq_len + row] * 1.4426950408889634F : CUDART_INF_F;
  if (head == 0 && a.lows != nullptr) {
    const int last = min(row, a.seq_len - 1);
    int low = a.first_keys == nullptr ? 0 : a.first_keys[int64_t{seq} * a.seq_len + last];
    if (a.window > 0) low = max(low, last - a.window + 1);
    a.lows[int64_t{seq} * a.padded + row] = low;
  }
}

struct FinishArgs {
  const float* dq_sums;
  __nv_bfloat16* dq;
  int64_t dq_stride;
  float scale;
  int num_seqs, seq_len, heads, row_tiles;
  GradientRotation rotation;
};
// Where 8 values of rows 16 i and 16 i + 8 are in a tile's sums: which half, and which of a thread's float4.
template <class L>
__device__ int2 place_of_sums(int row, int column) {
  if constexpr (L::kRows == 128) {
    return make_int2(row / 64, column / 8);
  } else if constexpr (L::kKeySize == 192) {
    return column / 64 == 1 ? make_int2(column % 64 / 32, 8 + column % 32 / 8)
                            : make_int2(column / 128, column % 64 / 8);
  } else {
    return make_int2(column / (L::kKeySize / 2), column % (L::kKeySize / 2) / 8);
  }
}
template <class L>
constexpr int kFinishThreads = L::kKeySize == 192 ? 192 : 256;

// A block a tile of rows of a head. A thread turns what four threads of a consumer had of two rows into 16 values of
// each: 8 pairs, where they are rotated.
template <class L>
__global__ void __launch_bounds__(kFinishThreads<L>) attention_finish_kernel(const FinishArgs a) {
  constexpr int kColumns = L::kKeySize / 16, kRotated = L::kRotated, kPairs = kRotated / 2;
  const int tile = static_cast<int>(blockIdx.x % a.row_tiles);
  const int64_t at = blockIdx.x / a.row_tiles;
  const int head = static_cast<int>(at % a.heads), seq = static_cast<int>(at / a.heads);
  const auto* const sums = reinterpret_cast<const float4*>(a.dq_sums + int64_t{blockIdx.x} * 2 * L::kHalfSums);
  const bool rotates = a.rotation.positions != nullptr;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < L::kRows / 2 * kColumns; i += kFinishThreads<L>) {
    const int quad = i / kColumns, row = quad / 8 * 16 + quad % 8;
    // The first 8 pairs of those that are rotated are this thread's, or two chunks of what is not, and so on.
    const int pair = i % kColumns * 8 - (L::kKeySize - kRotated) / 2;
    const bool rotated = rotates && pair >= 0;
    const bool halves = rotated && a.rotation.halves;
    const int first = L::kKeySize - kRotated + (halves ? pair : 2 * pair), second = first + (halves ? kPairs : 8);
    float x[2][2][8];  // rows, chunks
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const int2 place = place_of_sums<L>(row, chunk == 0 ? first : second);
      const float4* const source = sums + place.x * (L::kHalfSums / 4) + place.y * kWarpgroup + quad % 32 * 4;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float4 sum = source[t];
        x[0][chunk][2 * t] = a.scale * sum.x;
        x[0][chunk][2 * t + 1] = a.scale * sum.y;
        x[1][chunk][2 * t] = a.scale * sum.z;
        x[1][chunk][2 * t + 1] = a.scale * sum.w;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = tile * L::kRows + row + 8 * h;
      if (place >= a.seq_len) continue;
      const int64_t token = int64_t{seq} * a.seq_len + place;
      if (rotated) {
        float c[8], s[8];
        load_angles<8>(a.rotation, token, kPairs, pair, c, s);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          if (halves) {
            rotate_back(x[h][0][n], x[h][1][n], c[n], s[n]);
          } else {
            rotate_back(x[h][n / 4][n % 4 * 2], x[h][n / 4][n % 4 * 2 + 1], c[n], s[n]);
          }
        }
      }
      __nv_bfloat16* const target = a.dq + token * a.dq_stride + head * L::kKeySize;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) store8(target + (chunk == 0 ? first : second), x[h][chunk]);
    }
  }
}

}  // namespace nmoe::cuda::sm90
