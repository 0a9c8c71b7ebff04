// MLA of single tokens over a cache of latents (ops/contracts/cache.h): what is to be cached and the queries in latent
// space, by one kernel; attention as cached_attention; the heads' outputs as a product for each head.
//
// Queries are bound by reading kv_up, which is on its way to L2 while the work in front ends: blocks have a head's part
// of it, and a few tokens that share what is read. All sums have an order that depends on sizes, position and window
// alone.
#include <algorithm>

#include "ops/cuda/cached_attention_scratch.h"
#include "ops/cuda/kernels/cached_places.cuh"
#include "ops/cuda/kernels/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kColumns = 128;  // of latents, of a block that makes queries
constexpr int kColumnThreads = kColumns / 8;
constexpr int kGroups = kThreads / kColumnThreads;  // that share what is summed over
static_assert(kColumns == kThreads && kColumnThreads * 2 == kWarp);

__device__ float nan_value() { return __int_as_float(0x7FC00000); }

template <class T>
struct Latents {
  const T* q;          // [T, H, nope + rope], q_stride from a token to the next
  const T* kv_latent;  // [T, rank], latent_stride
  const T* k_rope;     // [T, rope], key_stride
  const float* gain;
  const float* cos;  // [num_positions, rope / 2]
  const float* sin;
  const T* kv_up;  // [H, nope + value, rank]
  CachePlaces places;
  T* cache;     // [Z, C, rank + rope]
  T* latent_q;  // [T, H, rank + rope]
  int64_t q_stride, latent_stride, key_stride, num_positions;
  int num_tokens, num_heads, nope, rope, rank, value;
  float eps;
  bool interleaved;
  bool vector_weights, vector_latents;  // as can_vectorise says

  __device__ const T* head_weights(int head) const {
    return kv_up + static_cast<int64_t>(head) * (nope + value) * rank;
  }
};

// Writes pair `pair` of `rope` values, rotated to `position`.
template <class T>
__device__ void rotate_pair(const Latents<T>& p, const T* x, T* target, int64_t position, int pair) {
  const int pairs = p.rope / 2, first = p.interleaved ? 2 * pair : pair,
            second = p.interleaved ? first + 1 : pair + pairs;
  const bool known = position >= 0 && position < p.num_positions;
  const float c = known ? p.cos[position * pairs + pair] : nan_value();
  const float s = known ? p.sin[position * pairs + pair] : nan_value();
  const float a = to_float(x[first]), b = to_float(x[second]);
  target[first] = from_float<T>(a * c - b * s);
  target[second] = from_float<T>(a * s + b * c);
}

// What is cached of a token, by a warp.
template <class T>
__device__ void write_to_cache(const Latents<T>& p, int64_t token, int lane) {
  const Seen seen = seen_by(p.places, token, /*window=*/0);
  if (!seen.exists()) return;
  const T* x = p.kv_latent + token * p.latent_stride;
  T* const target = p.cache + (seen.slot * p.places.capacity + seen.position()) * (p.rank + p.rope);
  float squares = 0.0F;
  for (int i = lane * 8; i < p.rank; i += kWarp * 8) {
    float values[8];
    load8(x, i, p.rank, p.vector_latents, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
  }
  const float rstd = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(p.rank) + p.eps);
  for (int i = lane * 8; i < p.rank; i += kWarp * 8) {
    float values[8], gains[8];
    load8(x, i, p.rank, p.vector_latents, values);
    load8(p.gain, i, p.rank, p.vector_latents, gains);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = values[j] * rstd * gains[j];
    store8(target, i, p.rank, p.vector_latents, values);
  }
  for (int pair = lane; pair < p.rope / 2; pair += kWarp) {
    rotate_pair(p, p.k_rope + token * p.key_stride, target + p.rank, seen.position(), pair);
  }
}

// What tokens are rotated by.
template <class T>
__device__ void prefetch_positions(const Latents<T>& p, int64_t begin, int tokens) {
  const auto token = static_cast<int>(threadIdx.x);
  if (token >= tokens) return;
  const int64_t position = __ldcg(p.places.positions + begin + token);  // as it stands
  if (position < 0 || position >= p.num_positions) return;
  prefetch_line(p.cos + position * (p.rope / 2));
  prefetch_line(p.sin + position * (p.rope / 2));
}

// Grid: tiles of kTokens tokens; heads, and one more for what is cached; tiles of columns of the latents.
template <class T, int kTokens>
__global__ void __launch_bounds__(kThreads) queries_kernel(Latents<T> p) {
  extern __shared__ float queries[];  // [nope, kTokens]; 0 past the last token
  __shared__ float warp_sums[kWarps][kTokens][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, p.num_tokens - begin));
  const int head = static_cast<int>(blockIdx.y), first_column = static_cast<int>(blockIdx.z) * kColumns;
  let_next_start();
  prefetch_positions(p, begin, tokens);
  if (head == p.num_heads) {
    if (blockIdx.z == 0) prefetch_rows(p.gain, 1, p.rank);
    wait_for_work_before();
    if (blockIdx.z > 0) return;
    for (int t = warp; t < tokens; t += kWarps) write_to_cache(p, begin + t, lane);
    return;
  }
  const T* const weights = p.head_weights(head);
  if (blockIdx.x == 0 && blockIdx.z == 0) prefetch_rows(weights, p.nope, p.rank);
  wait_for_work_before();

  const int size = p.nope + p.rope;
  const auto query = [&](int t) { return p.q + (begin + t) * p.q_stride + static_cast<int64_t>(head) * size; };
  const auto latent_query = [&](int t) { return p.latent_q + ((begin + t) * p.num_heads + head) * (p.rank + p.rope); };
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * p.nope; i += kThreads) {
    const int t = i / p.nope, n = i % p.nope;
    queries[n * kTokens + t] = t < tokens ? to_float(query(t)[n]) : 0.0F;
  }
  __syncthreads();
  if (blockIdx.z == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < tokens * (p.rope / 2); i += kThreads) {
      const int t = i / (p.rope / 2), pair = i % (p.rope / 2);
      rotate_pair(p, query(t) + p.nope, latent_query(t) + p.rank, p.places.positions[begin + t], pair);
    }
  }
  const int own = static_cast<int>(threadIdx.x) % kColumnThreads * 8, column = first_column + own;
  const int group = static_cast<int>(threadIdx.x) / kColumnThreads;
  float sums[kTokens][8] = {};
  if (column < p.rank) {
#pragma unroll 8
    for (int n = group; n < p.nope; n += kGroups) {
      float row[8];
      load8(weights + static_cast<int64_t>(n) * p.rank, column, p.rank, p.vector_weights, row);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[t][i] += queries[n * kTokens + t] * row[i];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[t][i] += __shfl_xor_sync(kAllLanes, sums[t][i], kColumnThreads);
      if (lane < kColumnThreads) warp_sums[warp][t][own + i] = sums[t][i];
    }
  }
  __syncthreads();
  const int target = first_column + static_cast<int>(threadIdx.x);
  if (target >= p.rank) return;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= tokens) continue;
    float sum = warp_sums[0][t][threadIdx.x];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += warp_sums[w][t][threadIdx.x];
    latent_query(t)[target] = from_float<T>(sum);
  }
}

template <class T, int kTokens>
void run(Context& ctx, const MlaCachedAttention& args, const MlaSizes& sizes, Tensor latent_q) {
  const Latents<T> p{
      .q = args.q.rows_data<T>(),
      .kv_latent = args.kv_latent.rows_data<T>(),
      .k_rope = args.k_rope.rows_data<T>(),
      .gain = args.gain.data<float>(),
      .cos = args.cos.data<float>(),
      .sin = args.sin.data<float>(),
      .kv_up = args.kv_up.data<T>(),
      .places = {.slots = args.slots.data<int32_t>(),
                 .positions = args.positions.data<int32_t>(),
                 .num_slots = args.cache.dim(0),
                 .capacity = args.cache.dim(1)},
      .cache = args.cache.data<T>(),
      .latent_q = latent_q.data<T>(),
      .q_stride = args.q.stride(),
      .latent_stride = args.kv_latent.stride(),
      .key_stride = args.k_rope.stride(),
      .num_positions = args.cos.dim(0),
      .num_tokens = static_cast<int>(sizes.tokens),
      .num_heads = static_cast<int>(sizes.heads),
      .nope = static_cast<int>(sizes.nope),
      .rope = static_cast<int>(sizes.rope),
      .rank = static_cast<int>(sizes.rank),
      .value = static_cast<int>(sizes.value),
      .eps = static_cast<float>(args.eps),
      .interleaved = args.layout == RopeLayout::kInterleaved,
      .vector_weights = can_vectorise(sizes.rank, args.kv_up),
      .vector_latents = can_vectorise(sizes.rank, args.kv_latent, args.gain, args.cache) && sizes.rope % 8 == 0};
  const int64_t bytes = kTokens * sizes.nope * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kStatic = int64_t{kWarps} * kTokens * kColumns * static_cast<int64_t>(sizeof(float));
  NMOE_CHECK(bytes + kStatic <= kDefaultSharedBytes, "a head too wide: {} bytes of shared memory", bytes);
  const dim3 grid(grid_size(ceil_div(p.num_tokens, kTokens)), short_grid_size(p.num_heads + 1),
                  short_grid_size(std::max(1, ceil_div(p.rank, kColumns))));
  launch_early(ctx, queries_kernel<T, kTokens>, grid, kThreads, bytes, p);
}

}  // namespace

void mla_cached_attention(Context& ctx, const MlaCachedAttention& args) {
  const MlaSizes sizes = mla_sizes(args);
  ArenaScope scope(ctx.scratch);
  const CachedAttention attention = claim_latents(scope, args);
  if (ctx.counting()) return cached_attention(ctx, attention);
  if (args.out.num_elements() == 0) return;
  NMOE_CHECK(sizes.tokens <= INT32_MAX && args.kv_up.dim(0) <= INT32_MAX, "{} tokens, {}", sizes.tokens,
             args.kv_up.shape());
  dispatch_act(args.q.dtype(), [&](auto element) {
    using T = decltype(element);
    constexpr int kFew = 4;  // a block each: few tokens do not fill the device otherwise
    return sizes.tokens <= kFew ? run<T, 1>(ctx, args, sizes, attention.q) : run<T, 8>(ctx, args, sizes, attention.q);
  });
  cached_attention(ctx, attention);
  // A head's w_v lies behind its w_k.
  const Tensor heads = args.kv_up.reshape({sizes.heads, (sizes.nope + sizes.value) * sizes.rank});
  invariant_batched_product(ctx, attention.out, heads.columns(sizes.nope * sizes.rank, heads.dim(1)), args.out);
}

}  // namespace nmoe::cuda
