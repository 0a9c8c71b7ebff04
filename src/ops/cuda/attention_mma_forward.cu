// FlashAttention-2's forward (arXiv 2307.08691, algorithm 1) with mma.sync: a block has the 64 queries of a tile of one
// head, a warp 16 of them, and walks over tiles of 64 keys, the next of which is on its way meanwhile. Scores are
// softmaxed in base 2. Probabilities are rounded to BF16 to multiply the values.
//
// Matrix-bound: 4 * T^2/2 * H * (Dk + Dv) / 2 FLOP for a causal sequence of T. Not measured; mma.sync reaches about
// half of what Hopper's wgmma does.
#include <math_constants.h>

#include <algorithm>

#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/check.h"

namespace nmoe::cuda {
namespace {

constexpr int kKeyTile = 64;
constexpr int kScores = kKeyTile / 8;  // accumulators of a warp's scores

size_t shared_bytes(const AttentionGeometry& g) {
  const int queries = tile_values(kTileRows, g.Dk);
  const int keys = tile_values(kKeyTile, g.Dk) + tile_values(kKeyTile, g.Dv);
  return static_cast<size_t>(queries + 2 * keys) * sizeof(Bf16);
}

// kMaxDv: what Dv is at most.
template <int kMaxDv>
__global__ void __launch_bounds__(kMmaThreads)
    forward_kernel(AttentionGeometry g, const Bf16* q, const Bf16* k, const Bf16* v, Bf16* out, float* lse) {
  extern __shared__ uint4 shared[];
  const int key_values = tile_values(kKeyTile, g.Dk), value_values = tile_values(kKeyTile, g.Dv);
  Bf16* queries = reinterpret_cast<Bf16*>(shared);
  Bf16* keys = queries + tile_values(kTileRows, g.Dk);  // two stages, then two of values
  Bf16* values = keys + 2 * key_values;

  const int q_begin = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;  // late tiles have most to do
  const int q_end = min(q_begin + kTileRows, g.T);
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (g.H / g.G);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  // This thread's two queries, and the first key each sees.
  int query[2], first_key[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    query[half] = q_begin + warp_row + lane / 4 + half * 8;
    first_key[half] = query[half] < g.T ? g.sees[query[half]].x : g.T;
  }
  const int last_first_key = g.sees[q_end - 1].x;
  const int k_begin = g.sees[q_begin].x / kKeyTile * kKeyTile;
  const int num_tiles = (q_end - k_begin + kKeyTile - 1) / kKeyTile;

  const auto load_keys = [&](int tile) {
    const int first = k_begin + tile * kKeyTile;
    load_tile<kKeyTile>(keys + tile % 2 * key_values, k, first, g.T, g.G, kv_head, g.Dk);
    load_tile<kKeyTile>(values + tile % 2 * value_values, v, first, g.T, g.G, kv_head, g.Dv);
  };
  load_tile<kTileRows>(queries, q, q_begin, g.T, g.H, head, g.Dk);
  load_keys(0);
  commit_copies();

  const float scale = g.scale * kLog2e;
  float highest[2] = {-CUDART_INF_F, -CUDART_INF_F};
  float total[2] = {0.0F, 0.0F};  // of this thread's columns
  float sum[kMaxDv / 8][4];
  zero(sum);
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) load_keys(tile + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    float scores[kScores][4];
    multiply_rows(scores, queries, warp_row, keys + tile % 2 * key_values, g.Dk);
    const int first = k_begin + tile * kKeyTile;
    const bool all_seen = first >= last_first_key && first + kKeyTile - 1 <= q_begin;
    float best[2] = {-CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + n * 8 + lane % 4 * 2 + e % 2, half = e / 2;
        const bool seen = all_seen || (key >= first_key[half] && key <= query[half]);
        scores[n][e] = seen ? scores[n][e] * scale : -CUDART_INF_F;
        best[half] = fmaxf(best[half], scores[n][e]);
      }
    }
    float base[2];  // finite, where nothing was seen yet too
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      best[half] = fmaxf(best[half], __shfl_xor_sync(kAllLanes, best[half], 1));
      best[half] = fmaxf(best[half], __shfl_xor_sync(kAllLanes, best[half], 2));
      const float before = highest[half];
      highest[half] = fmaxf(before, best[half]);
      base[half] = highest[half] == -CUDART_INF_F ? 0.0F : highest[half];
      const float correction = exp2f(before - base[half]);
      total[half] *= correction;
#pragma unroll
      for (int n = 0; n < kMaxDv / 8; ++n) {
        sum[n][2 * half] *= correction;
        sum[n][2 * half + 1] *= correction;
      }
    }
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2f(scores[n][e] - base[e / 2]);
        total[e / 2] += scores[n][e];
      }
    }
    Left weights[kKeyTile / 16];
#pragma unroll
    for (int d = 0; d < kKeyTile / 16; ++d) weights[d] = pack(scores[2 * d], scores[2 * d + 1]);
    add_product(sum, weights, values + tile % 2 * value_values, g.Dv);
    __syncthreads();  // before the next but one tile comes to where this one is
  }

  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
    total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
    factors[half] = 1.0F / total[half];
    if (lane % 4 == 0 && query[half] < g.T) {
      lse[statistic_index(g, query[half], head)] = (highest[half] + log2f(total[half])) * kLn2;
    }
  }
  store_rows(out, sum, factors, q_begin + warp_row, g.T, g.H, head, g.Dv);
}

template <int kMaxDv>
void launch(const AttentionGeometry& g, const AttentionForward& args, cudaStream_t stream) {
  const size_t bytes = shared_bytes(g);
  NMOE_CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<kMaxDv>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>((g.T + kTileRows - 1) / kTileRows), static_cast<unsigned>(g.H));
  forward_kernel<kMaxDv><<<grid, kMmaThreads, bytes, stream>>>(
      g, static_cast<const Bf16*>(args.q.raw()), static_cast<const Bf16*>(args.k.raw()),
      static_cast<const Bf16*>(args.v.raw()), static_cast<Bf16*>(args.out.raw()), args.lse.data<float>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

bool mma_attention_takes(const AttentionGeometry& g, DType act) {
  return act == DType::kBF16 && g.Dk % 16 == 0 && g.Dv % 16 == 0 && g.Dk <= 256 && g.Dv <= 256;
}

void mma_attention_forward(const AttentionGeometry& g, const AttentionForward& args, cudaStream_t stream) {
  if (g.Dv <= 64) return launch<64>(g, args, stream);
  if (g.Dv <= 128) return launch<128>(g, args, stream);
  launch<256>(g, args, stream);
}

}  // namespace nmoe::cuda
