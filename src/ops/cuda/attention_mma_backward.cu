// FlashAttention-2's backward (arXiv 2307.08691, algorithm 2) with mma.sync, as two kernels so that nothing is added up
// by atomics: one has 64 queries a block and walks over keys for dq, one has 64 keys of a key/value head and walks over
// the queries of every query head of its group, in order, for dk and dv. Both compute the probabilities
//   p = exp(scale * q.k - lse) and ds = p * (dout.v - delta)
// anew; both are rounded to BF16 to multiply: dq = scale * ds k, dk = scale * ds^T q, dv = p^T dout.
//
// Matrix-bound: 7 products of T^2/2 * H * (Dk or Dv) * 2 FLOP for a causal sequence, 5 would do. Not measured.
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/check.h"

namespace nmoe::cuda {
namespace {

constexpr int kKeyTile = 64;    // keys a step of the kernel for dq
constexpr int kQueryTile = 32;  // queries a step of the kernel for dk and dv: sums of both leave few registers

struct BackwardArgs {
  const Bf16 *q, *k, *v, *dout;
  const float *lse, *delta;
  Bf16 *dq, *dk, *dv;
};

// --- dq

size_t query_kernel_bytes(const AttentionGeometry& g) {
  const int queries = tile_values(kTileRows, g.Dk) + tile_values(kTileRows, g.Dv);
  const int keys = tile_values(kKeyTile, g.Dk) + tile_values(kKeyTile, g.Dv);
  return static_cast<size_t>(queries + 2 * keys) * sizeof(Bf16);
}

// kMaxDk: what Dk is at most.
template <int kMaxDk>
__global__ void __launch_bounds__(kMmaThreads) backward_query_kernel(AttentionGeometry g, BackwardArgs args) {
  constexpr int kScores = kKeyTile / 8;
  extern __shared__ uint4 shared[];
  const int key_values = tile_values(kKeyTile, g.Dk), value_values = tile_values(kKeyTile, g.Dv);
  Bf16* queries = reinterpret_cast<Bf16*>(shared);
  Bf16* douts = queries + tile_values(kTileRows, g.Dk);
  Bf16* keys = douts + tile_values(kTileRows, g.Dv);  // two stages, then two of values
  Bf16* values = keys + 2 * key_values;

  const int q_begin = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;  // late tiles have most to do
  const int q_end = min(q_begin + kTileRows, g.T);
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (g.H / g.G);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  // This thread's two queries, the first key each sees, and their statistics.
  int query[2], first_key[2];
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    query[half] = q_begin + warp_row + lane / 4 + half * 8;
    const bool exists = query[half] < g.T;
    first_key[half] = exists ? g.sees[query[half]].x : g.T;
    lse[half] = exists ? args.lse[statistic_index(g, query[half], head)] * kLog2e : 0.0F;
    delta[half] = exists ? args.delta[statistic_index(g, query[half], head)] : 0.0F;
  }
  const int last_first_key = g.sees[q_end - 1].x;
  const int k_begin = g.sees[q_begin].x / kKeyTile * kKeyTile;
  const int num_tiles = (q_end - k_begin + kKeyTile - 1) / kKeyTile;

  const auto load_keys = [&](int tile) {
    const int first = k_begin + tile * kKeyTile;
    load_tile<kKeyTile>(keys + tile % 2 * key_values, args.k, first, g.T, g.G, kv_head, g.Dk);
    load_tile<kKeyTile>(values + tile % 2 * value_values, args.v, first, g.T, g.G, kv_head, g.Dv);
  };
  load_tile<kTileRows>(queries, args.q, q_begin, g.T, g.H, head, g.Dk);
  load_tile<kTileRows>(douts, args.dout, q_begin, g.T, g.H, head, g.Dv);
  load_keys(0);
  commit_copies();

  const float scale = g.scale * kLog2e;
  float dq[kMaxDk / 8][4];
  zero(dq);
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) load_keys(tile + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    float scores[kScores][4], dp[kScores][4];
    multiply_rows(scores, queries, warp_row, keys + tile % 2 * key_values, g.Dk);
    multiply_rows(dp, douts, warp_row, values + tile % 2 * value_values, g.Dv);
    const int first = k_begin + tile * kKeyTile;
    const bool all_seen = first >= last_first_key && first + kKeyTile - 1 <= q_begin && q_end - q_begin == kTileRows;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + n * 8 + lane % 4 * 2 + e % 2, half = e / 2;
        const bool seen = all_seen || (query[half] < g.T && key >= first_key[half] && key <= query[half]);
        scores[n][e] = seen ? exp2f(scores[n][e] * scale - lse[half]) * (dp[n][e] - delta[half]) : 0.0F;
      }
    }
    Left dscores[kKeyTile / 16];
#pragma unroll
    for (int d = 0; d < kKeyTile / 16; ++d) dscores[d] = pack(scores[2 * d], scores[2 * d + 1]);
    add_product(dq, dscores, keys + tile % 2 * key_values, g.Dk);
    __syncthreads();  // before the next but one tile comes to where this one is
  }
  store_rows(args.dq, dq, {g.scale, g.scale}, q_begin + warp_row, g.T, g.H, head, g.Dk);
}

template <int kMaxDk>
void launch_query_kernel(const AttentionGeometry& g, const BackwardArgs& args, cudaStream_t stream) {
  const size_t bytes = query_kernel_bytes(g);
  NMOE_CUDA_CHECK(cudaFuncSetAttribute(backward_query_kernel<kMaxDk>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>((g.T + kTileRows - 1) / kTileRows), static_cast<unsigned>(g.H));
  backward_query_kernel<kMaxDk><<<grid, kMmaThreads, bytes, stream>>>(g, args);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// --- dk and dv

size_t key_kernel_bytes(const AttentionGeometry& g) {
  const int keys = tile_values(kTileRows, g.Dk) + tile_values(kTileRows, g.Dv);
  const int queries = tile_values(kQueryTile, g.Dk) + tile_values(kQueryTile, g.Dv);
  return static_cast<size_t>(keys + 2 * queries) * sizeof(Bf16) + 2 * 2 * kQueryTile * sizeof(float);
}

// kMaxDk, kMaxDv: what Dk and Dv are at most; 0: dk or dv is another launch's, since the sums of both would not fit
// into registers.
template <int kMaxDk, int kMaxDv>
__global__ void __launch_bounds__(kMmaThreads) backward_key_kernel(AttentionGeometry g, BackwardArgs args) {
  constexpr int kScores = kQueryTile / 8;
  constexpr bool kWantDk = kMaxDk > 0, kWantDv = kMaxDv > 0;
  extern __shared__ uint4 shared[];
  const int query_values = tile_values(kQueryTile, g.Dk), dout_values = tile_values(kQueryTile, g.Dv);
  Bf16* keys = reinterpret_cast<Bf16*>(shared);
  Bf16* values = keys + tile_values(kTileRows, g.Dk);
  Bf16* queries = values + tile_values(kTileRows, g.Dv);  // two stages, then two of dout
  Bf16* douts = queries + 2 * query_values;
  float* lse = reinterpret_cast<float*>(douts + 2 * dout_values);  // two stages, in base 2, then two of delta
  float* delta = lse + 2 * kQueryTile;

  const int k_begin = static_cast<int>(blockIdx.x) * kTileRows;
  const int k_end = min(k_begin + kTileRows, g.T);
  const int kv_head = static_cast<int>(blockIdx.y), group_size = g.H / g.G;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  // This thread's two keys, and where the queries that see each end.
  int key[2], end[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    key[half] = k_begin + warp_row + lane / 4 + half * 8;
    end[half] = key[half] < g.T ? g.sees[key[half]].y : 0;
  }
  const int first_end = g.sees[k_begin].y, q_end = g.sees[k_end - 1].y;
  const int tiles_per_head = (q_end - k_begin + kQueryTile - 1) / kQueryTile;
  const int num_steps = group_size * tiles_per_head;

  const auto load_queries = [&](int step) {
    const int head = kv_head * group_size + step / tiles_per_head, stage = step % 2;
    const int first = k_begin + step % tiles_per_head * kQueryTile;
    load_tile<kQueryTile>(queries + stage * query_values, args.q, first, g.T, g.H, head, g.Dk);
    load_tile<kQueryTile>(douts + stage * dout_values, args.dout, first, g.T, g.H, head, g.Dv);
    const int i = static_cast<int>(threadIdx.x), token = first + i;
    if (i < kQueryTile) {
      const bool exists = token < g.T;
      lse[stage * kQueryTile + i] = exists ? args.lse[statistic_index(g, token, head)] * kLog2e : 0.0F;
      delta[stage * kQueryTile + i] = exists ? args.delta[statistic_index(g, token, head)] : 0.0F;
    }
  };
  load_tile<kTileRows>(keys, args.k, k_begin, g.T, g.G, kv_head, g.Dk);
  if constexpr (kWantDk) load_tile<kTileRows>(values, args.v, k_begin, g.T, g.G, kv_head, g.Dv);
  load_queries(0);
  commit_copies();

  const float scale = g.scale * kLog2e;
  float dk[kWantDk ? kMaxDk / 8 : 2][4], dv[kWantDv ? kMaxDv / 8 : 2][4];
  zero(dk);
  zero(dv);
  for (int step = 0; step < num_steps; ++step) {
    if (step + 1 < num_steps) load_queries(step + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    const int stage = step % 2;
    const Bf16* query_tile = queries + stage * query_values;
    const Bf16* dout_tile = douts + stage * dout_values;
    float p[kScores][4];  // transposed: rows are keys
    multiply_rows(p, keys, warp_row, query_tile, g.Dk);
    const int first = k_begin + step % tiles_per_head * kQueryTile;
    const bool all_seen =
        first >= k_begin + kTileRows - 1 && first + kQueryTile <= first_end && k_end - k_begin == kTileRows;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = n * 8 + lane % 4 * 2 + e % 2, half = e / 2, query = first + column;
        const bool seen = all_seen || (query >= key[half] && query < end[half]);
        p[n][e] = seen ? exp2f(p[n][e] * scale - lse[stage * kQueryTile + column]) : 0.0F;
      }
    }
    if constexpr (kWantDv) {
      Left weights[kQueryTile / 16];
#pragma unroll
      for (int d = 0; d < kQueryTile / 16; ++d) weights[d] = pack(p[2 * d], p[2 * d + 1]);
      add_product(dv, weights, dout_tile, g.Dv);
    }
    if constexpr (kWantDk) {
      float dp[kScores][4];
      multiply_rows(dp, values, warp_row, dout_tile, g.Dv);
#pragma unroll
      for (int n = 0; n < kScores; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = n * 8 + lane % 4 * 2 + e % 2;
          dp[n][e] = p[n][e] * (dp[n][e] - delta[stage * kQueryTile + column]);
        }
      }
      Left dscores[kQueryTile / 16];
#pragma unroll
      for (int d = 0; d < kQueryTile / 16; ++d) dscores[d] = pack(dp[2 * d], dp[2 * d + 1]);
      add_product(dk, dscores, query_tile, g.Dk);
    }
    __syncthreads();  // before the next but one tile comes to where this one is
  }
  if constexpr (kWantDk) {
    store_rows(args.dk, dk, {g.scale, g.scale}, k_begin + warp_row, g.T, g.G, kv_head, g.Dk);
  }
  if constexpr (kWantDv) {
    store_rows(args.dv, dv, {1.0F, 1.0F}, k_begin + warp_row, g.T, g.G, kv_head, g.Dv);
  }
}

template <int kMaxDk, int kMaxDv>
void launch_key_kernel(const AttentionGeometry& g, const BackwardArgs& args, cudaStream_t stream) {
  const size_t bytes = key_kernel_bytes(g);
  NMOE_CUDA_CHECK(cudaFuncSetAttribute(backward_key_kernel<kMaxDk, kMaxDv>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>((g.T + kTileRows - 1) / kTileRows), static_cast<unsigned>(g.G));
  backward_key_kernel<kMaxDk, kMaxDv><<<grid, kMmaThreads, bytes, stream>>>(g, args);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

template <class T>
T* pointer(const Tensor& x) {
  return static_cast<T*>(x.raw());
}

}  // namespace

void mma_attention_backward(const AttentionGeometry& g, const AttentionBackward& args, const float* delta,
                            cudaStream_t stream) {
  const BackwardArgs pointers = {pointer<Bf16>(args.q),    pointer<Bf16>(args.k),  pointer<Bf16>(args.v),
                                 pointer<Bf16>(args.dout), args.lse.data<float>(), delta,
                                 pointer<Bf16>(args.dq),   pointer<Bf16>(args.dk), pointer<Bf16>(args.dv)};
  if (g.Dk <= 64) {
    launch_query_kernel<64>(g, pointers, stream);
  } else if (g.Dk <= 128) {
    launch_query_kernel<128>(g, pointers, stream);
  } else if (g.Dk <= 192) {
    launch_query_kernel<192>(g, pointers, stream);
  } else {
    launch_query_kernel<256>(g, pointers, stream);
  }
  if (g.Dk <= 64 && g.Dv <= 64) {
    launch_key_kernel<64, 64>(g, pointers, stream);
  } else if (g.Dk <= 128 && g.Dv <= 128) {
    launch_key_kernel<128, 128>(g, pointers, stream);
  } else if (g.Dk <= 192 && g.Dv <= 128) {
    launch_key_kernel<192, 128>(g, pointers, stream);
  } else {
    launch_key_kernel<256, 0>(g, pointers, stream);
    launch_key_kernel<0, 256>(g, pointers, stream);
  }
}

}  // namespace nmoe::cuda
