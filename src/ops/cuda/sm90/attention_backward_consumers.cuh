// Attention, backward: what a consumer warpgroup of the main kernel (attention_backward.cuh) does with tiles of
// queries.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/attention_backward_layout.cuh"
#include "ops/cuda/sm90/gradient_rotation.cuh"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {

__device__ inline float unpack(uint32_t pair, int which) {
  return __uint_as_float(which == 0 ? pair << 16 : pair & 0xFFFF0000U);
}
__device__ inline void store_matrices(uint32_t target, const uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(target), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// D[64 keys, rows] = keys x rows^T over `kSize` values: both operands by rows.
template <class L, int kSize>
__device__ void multiply_scores(const std::byte* keys, const std::byte* rows, float (&d)[L::kRows / 2]) {
  const uint64_t a = wgmma_descriptor<L::kKeyPanel>(keys), b = wgmma_descriptor<L::kRowPanel>(rows);
#pragma unroll
  for (int k = 0; k < kSize / kProductDepth; ++k) {
    constexpr int kPerPanel = kPanel / kProductDepth;
    const uint64_t step = k % kPerPanel * wgmma_descriptor_step<true>();
    const uint64_t at = a + k / kPerPanel * (L::kKeyPanel / 16) + step;
    const uint64_t bt = b + k / kPerPanel * (L::kRowPanel / 16) + step;
    if constexpr (L::kRows == 128) {
      wgmma_n128<false, false>(d, at, bt, k > 0);
    } else {
      wgmma_n64<false, false>(d, at, bt, k > 0);
    }
  }
}

// Row h of the two that this thread has of dk, whose whole head is rotated.
template <class L>
__device__ void rotate_keys(const GradientRotation& rotation, int64_t token, int h, float (&dk)[L::kKeySize / 2]) {
  constexpr int kPairs = L::kKeySize / 2;
  const int place = static_cast<int>(threadIdx.x) % 4;
  if (rotation.halves) {
#pragma unroll
    for (int j = 0; j < L::kKeySize / 16; ++j) {
      float c[2], s[2];
      load_angles<2>(rotation, token, kPairs, 8 * j + 2 * place, c, s);
      float* const first = dk + 4 * j + 2 * h;
      float* const second = first + L::kKeySize / 4;
      rotate_back(first[0], second[0], c[0], s[0]);
      rotate_back(first[1], second[1], c[1], s[1]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < L::kKeySize / 8; ++j) {
      float c[1], s[1];
      load_angles<1>(rotation, token, kPairs, 4 * j + place, c, s);
      rotate_back(dk[4 * j + 2 * h], dk[4 * j + 2 * h + 1], c[0], s[0]);
    }
  }
}

// Scores of what a row of queries does not see become -inf. Keys and rows: the tile's first; own_key: the thread's
// first of the tile's keys, of which it has another 8 behind it. lows: read if rows are bounded.
template <class L>
__device__ __forceinline__ void mask_scores(bool bounded, const int32_t* lows, int key0, int row0, int own_key,
                                            float (&s)[L::kRows / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (key0 + L::kKeys - 1 > row0) {  // of consumers alike, so that neither runs ahead
#pragma unroll
    for (int j = 0; j < L::kRows / 2; ++j) {
      const int key = key0 + own_key + (j / 2 % 2) * 8, row = row0 + j / 4 * 8 + lane % 4 * 2 + j % 2;
      if (key > row) s[j] = -CUDART_INF_F;
    }
  }
  if (!bounded || lows[L::kRows - 1] <= key0) return;
#pragma unroll
  for (int j = 0; j < L::kRows / 2; j += 4) {
    const int2 low = *reinterpret_cast<const int2*>(lows + j * 2 + lane % 4 * 2);
    const int key = key0 + own_key;
    if (key < low.x) s[j] = -CUDART_INF_F;
    if (key < low.y) s[j + 1] = -CUDART_INF_F;
    if (key + 8 < low.x) s[j + 2] = -CUDART_INF_F;
    if (key + 8 < low.y) s[j + 3] = -CUDART_INF_F;
  }
}

// s becomes p = exp2(scale2 s - lse), and p its pairs in BF16.
template <class L>
__device__ __forceinline__ void find_probabilities(const float* tile_lse, float scale2, float (&s)[L::kRows / 2],
                                                   uint32_t (&p)[L::kRows / 4]) {
  const float* const lse = tile_lse + threadIdx.x % kWarp % 4 * 2;
#pragma unroll
  for (int j = 0; j < L::kRows / 2; j += 4) {
    const float2 l = *reinterpret_cast<const float2*>(lse + j * 2);
    s[j] = flushed_exp2(s[j] * scale2 - l.x);
    s[j + 1] = flushed_exp2(s[j + 1] * scale2 - l.y);
    s[j + 2] = flushed_exp2(s[j + 2] * scale2 - l.x);
    s[j + 3] = flushed_exp2(s[j + 3] * scale2 - l.y);
    p[j / 2] = bf16_pair(s[j], s[j + 1]);
    p[j / 2 + 1] = bf16_pair(s[j + 2], s[j + 3]);
  }
}

// dv += p^T dout, or = without `accumulate`.
template <class L>
__device__ __forceinline__ void multiply_values(const std::byte* dout, const uint32_t (&p)[L::kRows / 4],
                                                bool accumulate, float (&dv)[L::kValueSize / 2]) {
  const uint64_t b = wgmma_descriptor<L::kRowPanel>(dout);
#pragma unroll
  for (int k = 0; k < L::kRows / kProductDepth; ++k) {
    wgmma_rows<true>(dv, p + 4 * k, b + k * wgmma_descriptor_step<false>(), accumulate || k > 0);
  }
}

// Where a lane writes transposed scores by stmatrix: its row of keys, and what its chunks of 16 bytes are swizzled by.
struct ScorePlace {
  uint32_t row;
  int chunk, swizzle;
};
__device__ inline ScorePlace score_place(const std::byte* scores, int consumer) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarp;
  const int row = consumer * kPanel + thread / kWarp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  return {.row = shared_address(scores) + row * 128, .chunk = lane / 16, .swizzle = lane % 8};
}

// ds^T = p (dp - delta), to `matrices`: score_place() of the buffer.
template <class L>
__device__ __forceinline__ void store_score_gradients(const float* tile_delta, const ScorePlace& place,
                                                      uint32_t matrices, const uint32_t (&p)[L::kRows / 4],
                                                      const float (&s)[L::kRows / 2], const float (&dp)[L::kRows / 2]) {
  const float* const delta = tile_delta + threadIdx.x % kWarp % 4 * 2;
#pragma unroll
  for (int j = 0; j < L::kRows / 2; j += 8) {
    const float2 d0 = *reinterpret_cast<const float2*>(delta + j * 2);
    const float2 d1 = *reinterpret_cast<const float2*>(delta + j * 2 + 8);
    float e[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) e[n] = L::kNarrow ? unpack(p[(j + n) / 2], n % 2) : s[j + n];
    const uint32_t r[4] = {bf16_pair(e[0] * (dp[j] - d0.x), e[1] * (dp[j + 1] - d0.y)),
                           bf16_pair(e[2] * (dp[j + 2] - d0.x), e[3] * (dp[j + 3] - d0.y)),
                           bf16_pair(e[4] * (dp[j + 4] - d1.x), e[5] * (dp[j + 5] - d1.y)),
                           bf16_pair(e[6] * (dp[j + 6] - d1.x), e[7] * (dp[j + 7] - d1.y))};
    const int chunk = j / 4 + place.chunk;  // of 8 rows
    store_matrices(matrices + j / 32 * L::kKeyPanel + ((chunk % 8) ^ place.swizzle) * 16, r);
  }
}

// A half of dq = ds k: the half of its rows or of its columns. With heads of 192 a whole panel of it, and the half of
// the middle one by multiply_middle_queries().
template <class L, int kValues>
__device__ __forceinline__ void multiply_queries(const std::byte* ds, const std::byte* k, int consumer,
                                                 float (&dq)[kValues]) {
  constexpr uint64_t kStep = wgmma_descriptor_step<false>();
  constexpr bool kByRows = L::kRows == 128;
  static_assert(!kByRows || L::kKeySize == kPanel);
  constexpr bool kPart = !kByRows && L::kKeySize == 64;  // of the only panel
  constexpr int kPanelsApart = L::kKeySize == 192 ? 2 : 1;
  const uint64_t da = wgmma_descriptor<L::kKeyPanel>(kByRows ? ds + consumer * L::kKeyPanel : ds);
  const uint64_t db =
      wgmma_descriptor<L::kKeyPanel>(kByRows ? k : k + consumer * (kPart ? 64 : kPanelsApart * L::kKeyPanel));
#pragma unroll
  for (int n = 0; n < L::kKeys / kProductDepth; ++n) {
    if constexpr (kPart) {
      wgmma_n32<true, true>(dq, da + n * kStep, db + n * kStep, n > 0);
    } else {
      wgmma_n64<true, true>(dq, da + n * kStep, db + n * kStep, n > 0);
    }
  }
}
template <class L, int kValues>
__device__ __forceinline__ void multiply_middle_queries(const std::byte* ds, const std::byte* k, int consumer,
                                                        float (&half)[kValues]) {
  constexpr uint64_t kStep = wgmma_descriptor_step<false>();
  const uint64_t da = wgmma_descriptor<L::kKeyPanel>(ds);
  const uint64_t db = wgmma_descriptor<L::kKeyPanel>(k + L::kKeyPanel + consumer * 64);
#pragma unroll
  for (int n = 0; n < L::kKeys / kProductDepth; ++n) {
    wgmma_n32<true, true>(half, da + n * kStep, db + n * kStep, n > 0);
  }
}
template <int kValues>
__device__ __forceinline__ void store_sums(const float (&dq)[kValues], float4* sums) {
#pragma unroll
  for (int c = 0; c < kValues / 4; ++c) {
    sums[c * kWarpgroup] = make_float4(dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
  }
}

// dk += ds^T q, or = without `accumulate`. ds: the consumer's keys.
template <class L>
__device__ __forceinline__ void multiply_keys(const std::byte* ds, const std::byte* query, bool accumulate,
                                              float (&dk)[L::kKeySize / 2]) {
  constexpr int kPerPanel = kPanel / kProductDepth;
  const uint64_t da = wgmma_descriptor<L::kKeyPanel>(ds), db = wgmma_descriptor<L::kRowPanel>(query);
#pragma unroll
  for (int n = 0; n < L::kRows / kProductDepth; ++n) {
    const uint64_t at = da + n / kPerPanel * (L::kKeyPanel / 16) + n % kPerPanel * wgmma_descriptor_step<true>();
    const uint64_t bt = db + n * wgmma_descriptor_step<false>();
    if constexpr (L::kKeySize == 64) {
      wgmma_n64<false, true>(dk, at, bt, accumulate || n > 0);
    } else if constexpr (L::kKeySize == 128) {
      wgmma_n128<false, true>(dk, at, bt, accumulate || n > 0);
    } else {
      wgmma_n192<false, true>(dk, at, bt, accumulate || n > 0);
    }
  }
}

// The gradients of the two keys of a thread, the first of which is `row` of the sequence, where they exist.
template <class L>
__device__ __forceinline__ void store_key_gradients(const BackwardArgs& a, const BackwardWork& work, int row,
                                                    float (&dk)[L::kKeySize / 2],
                                                    const float (&dv)[L::kValueSize / 2]) {
  constexpr int kRest = L::kKeySize - kPanel;  // keys' values but the last
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= a.seq_len) continue;
    const int64_t token = int64_t{work.seq} * a.seq_len + row + 8 * h;
    __nv_bfloat16* const dk_row = a.dk.of(token, work.kv_head) + lane % 4 * 2;
    __nv_bfloat16* const dk_last_row = a.dk_last.of(token, work.kv_head) + lane % 4 * 2;
    __nv_bfloat16* const dv_row = a.dv.of(token, work.kv_head) + lane % 4 * 2;
    if (a.rotation.positions != nullptr) rotate_keys<L>(a.rotation, token, h, dk);
#pragma unroll
    for (int j = 0; j < L::kKeySize / 8; ++j) {
      __nv_bfloat16* const target = 8 * j < kRest ? dk_row + 8 * j : dk_last_row + (8 * j - kRest);
      *reinterpret_cast<uint32_t*>(target) = bf16_pair(a.scale * dk[4 * j + 2 * h], a.scale * dk[4 * j + 2 * h + 1]);
    }
#pragma unroll
    for (int j = 0; j < L::kValueSize / 8; ++j) {
      *reinterpret_cast<uint32_t*>(dv_row + 8 * j) = bf16_pair(dv[4 * j + 2 * h], dv[4 * j + 2 * h + 1]);
    }
  }
}

// A consumer warpgroup, of 64 keys of every block.
template <class L>
__device__ void consume_backward(const BackwardArgs& a, const BackwardShared<L>& shared) {
  constexpr int kScoreValues = L::kRows / 2, kSumValues = L::kHalfSums / kWarpgroup;
  constexpr int kWhole = kSumValues < 32 ? kSumValues : 32;  // of dq, that are multiplied at once
  auto& control = shared.control();
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarp;
  const int own_key = consumer * kPanel + thread / kWarp * 16 + lane / 4;  // and the one 8 behind it
  const std::byte* const own_values = shared.base + L::kV + consumer * kPanelBytes;
  const float scale2 = a.scale * 1.4426950408889634F;
  const ScorePlace place = score_place(shared.scores(0), consumer);

  RingPlace keys, query, dout;
  int sums_parity = 1, buffer = 0;
  for (int parity = 0;; parity ^= 1) {
    mbarrier_wait(&control.work_full, parity);
    const BackwardWork work = control.work;
    mbarrier_arrive(&control.work_empty);
    if (work.seq < 0) return;
    float dk[L::kKeySize / 2], dv[L::kValueSize / 2];
    const int tiles = work.end_tile - work.first_tile, count = tiles * a.group;
    const int key0 = work.block * L::kKeys;

    float s[kScoreValues], dp[kScoreValues];
    const std::byte* const own_keys = shared.keys(keys.stage) + consumer * kPanelBytes;
    mbarrier_wait(&control.keys_full[keys.stage], keys.parity);
    mbarrier_wait(&control.query_full[query.stage], query.parity);
    wgmma_fence();
    multiply_scores<L, L::kKeySize>(own_keys, shared.query(query.stage), s);
    wgmma_commit_group();
    mbarrier_wait(&control.values_full, parity);
    int t = 0, g = 0, before = -1;
#pragma unroll 1
    for (int i = 0;; ++i) {
      const int row0 = work.tile(a.order, t) * L::kRows;
      if constexpr (!L::kNarrow) {
        mbarrier_wait(&control.dout_full[dout.stage], dout.parity);
        wgmma_fence();
        multiply_scores<L, L::kValueSize>(own_values, shared.dout(dout.stage), dp);
        wgmma_commit_group();
      }
      wgmma_wait_group<L::kNarrow ? 0 : 1>();  // s, and dk before
      __syncwarp();
      if (before >= 0 && lane == 0) mbarrier_arrive(&control.query_empty[before]);
      mask_scores<L>(a.lows != nullptr, shared.lows(query.stage), key0, row0, own_key, s);
      uint32_t p[kScoreValues / 2];
      find_probabilities<L>(shared.lse(query.stage), scale2, s, p);
      if constexpr (L::kNarrow) {
        mbarrier_wait(&control.dout_full[dout.stage], dout.parity);
        wgmma_fence();
        multiply_scores<L, L::kValueSize>(own_values, shared.dout(dout.stage), dp);
        wgmma_commit_group();
      } else {
        wgmma_fence();
      }
      multiply_values<L>(shared.dout(dout.stage), p, i > 0, dv);
      wgmma_commit_group();
      wgmma_wait_group<1>();  // dp
      if (i + 1 == count && lane == 0) mbarrier_arrive(&control.values_empty);
      if constexpr (L::kScoreBuffers == 1) named_barrier_sync(1, L::kConsumers * kWarpgroup);
      store_score_gradients<L>(shared.delta(dout.stage), place, place.row + buffer * L::kScoreBytes, p, s, dp);
      fence_proxy_async();
      named_barrier_sync(1, L::kConsumers * kWarpgroup);

      float dq[kWhole];
      wgmma_fence();
      multiply_queries<L>(shared.scores(buffer), shared.keys(keys.stage), consumer, dq);
      wgmma_commit_group();
      RingPlace next = query;
      next.template advance<L::kQueryStages>();
      multiply_keys<L>(shared.scores(buffer) + consumer * kPanelBytes, shared.query(query.stage), i > 0, dk);
      wgmma_commit_group();
      wgmma_wait_group<1>();  // dq, and dv
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control.dout_empty[dout.stage]);
      mbarrier_wait(&control.sums_empty[consumer], sums_parity);
      sums_parity ^= 1;
      float4* const sums = reinterpret_cast<float4*>(shared.sums(consumer)) + thread;
      store_sums(dq, sums);
      if constexpr (kSumValues > kWhole) {
        float half[kSumValues - kWhole];
        wgmma_fence();
        multiply_middle_queries<L>(shared.scores(buffer), shared.keys(keys.stage), consumer, half);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        store_sums(half, sums + kWhole / 4 * kWarpgroup);
      }
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control.sums_full[consumer]);
      if (i + 1 == count && lane == 0) mbarrier_arrive(&control.keys_empty[keys.stage]);
      before = query.stage;
      query = next;
      dout.template advance<L::kDoutStages>();
      if constexpr (L::kScoreBuffers == 2) buffer ^= 1;
      if (++g == a.group) {
        g = 0;
        ++t;
      }
      if (i + 1 == count) break;
      mbarrier_wait(&control.query_full[query.stage], query.parity);
      wgmma_fence();
      multiply_scores<L, L::kKeySize>(own_keys, shared.query(query.stage), s);
      wgmma_commit_group();
    }
    wgmma_wait_group<0>();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&control.query_empty[before]);
    keys.template advance<L::kKeyStages>();
    store_key_gradients<L>(a, work, key0 + own_key, dk, dv);
  }
}

}  // namespace nmoe::cuda::sm90
