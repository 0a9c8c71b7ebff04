// MLA of single tokens over a cache of latents (ops/contracts/cache.h): what is to be cached and the queries in latent
// space, by one kernel; attention as cached_attention; the heads' outputs as a product for each head.
//
// Queries are tiles of a product for each head. Bound by reading kv_up, which is on its way to L2 while the work in
// front ends. All sums have an order that depends on sizes, position and window alone.
#include <algorithm>

#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/kernels/products/invariant_products.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/norm_sum.cuh"
#include "ops/cuda/primitives/rotation.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

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
  bool vector_queries, vector_weights, vector_latents;  // as can_vectorise says

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
  const float2 rotated = rotate(to_float(x[first]), to_float(x[second]), c, s);
  target[first] = from_float<T>(rotated.x);
  target[second] = from_float<T>(rotated.y);
}

// What is cached of a token, by a warp.
template <class T>
__device__ void write_to_cache(const Latents<T>& p, int64_t token, int lane) {
  const Seen seen = seen_by(p.places, token, /*window=*/0);
  if (!seen.exists()) return;
  const T* x = p.kv_latent + token * p.latent_stride;
  T* const target = p.cache + (seen.slot * p.places.capacity + seen.position()) * (p.rank + p.rope);
  const float squares = warp_sum_of_squares(x, p.rank, p.vector_latents);
  const float rstd = 1.0F / sqrtf(squares / static_cast<float>(p.rank) + p.eps);
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

// Grid: tiles of tokens; heads, and one more for what is cached; tiles of columns of the latents.
template <class T>
__global__ void __launch_bounds__(GemmTile<T>::kThreads, GemmTile<T>::kBlocksPerSm) queries_kernel(Latents<T> p) {
  using Tile = GemmTile<T>;
  constexpr int kWarps = Tile::kThreads / kWarp;
  static_assert(Tile::kRows <= Tile::kThreads);  // a thread a token
  extern __shared__ uint4 shared[];
  const int thread = static_cast<int>(threadIdx.x), column_tile = static_cast<int>(blockIdx.z);
  const int column_tiles = static_cast<int>(gridDim.z), head = static_cast<int>(blockIdx.y);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * Tile::kRows;
  const int tokens = static_cast<int>(min(int64_t{Tile::kRows}, p.num_tokens - begin));
  let_next_start();
  prefetch_positions(p, begin, tokens);
  if (head == p.num_heads) {
    if (column_tile == 0) prefetch_rows(p.gain, 1, p.rank);
    wait_for_work_before();
    for (int t = column_tile * kWarps + thread / kWarp; t < tokens; t += column_tiles * kWarps) {
      write_to_cache(p, begin + t, thread % kWarp);
    }
    return;
  }
  const T* const weights = p.head_weights(head);
  if (blockIdx.x == 0 && column_tile == 0) prefetch_rows(weights, p.nope, p.rank);
  wait_for_work_before();

  const T* const queries = p.q + begin * p.q_stride + static_cast<int64_t>(head) * (p.nope + p.rope);
  const auto latent_query = [&](int t) { return p.latent_q + ((begin + t) * p.num_heads + head) * (p.rank + p.rope); };
  const int pairs = p.rope / 2;
  for (int i = column_tile * Tile::kThreads + thread; i < tokens * pairs; i += column_tiles * Tile::kThreads) {
    const int t = i / pairs;
    rotate_pair(p, queries + t * p.q_stride + p.nope, latent_query(t) + p.rank, p.places.positions[begin + t],
                i % pairs);
  }
  const int first_column = column_tile * Tile::kCols, columns = min(Tile::kCols, p.rank - first_column);
  const auto store = [&](int t, int column, float first, float second) {
    if (t >= tokens) return;
    T* const target = latent_query(t) + first_column;
    if (p.vector_weights && column < columns) return store2(target + column, first, second);
    if (column < columns) target[column] = from_float<T>(first);
    if (column + 1 < columns) target[column + 1] = from_float<T>(second);
  };
  gemm_tile(GemmOperand<T, true>{queries, p.q_stride, tokens, p.vector_queries},
            GemmOperand<T, false>{weights + first_column, p.rank, columns, p.vector_weights}, p.nope, 0, 0, shared,
            store);
}

template <class T>
void run(Context& ctx, const MlaCachedAttention& args, const MlaSizes& sizes, Tensor latent_q) {
  using Tile = GemmTile<T>;
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
      .vector_queries = can_vectorise(sizes.nope, args.q) && sizes.rope % 8 == 0,
      .vector_weights = can_vectorise(sizes.rank, args.kv_up),
      .vector_latents = can_vectorise(sizes.rank, args.kv_latent, args.gain, args.cache) && sizes.rope % 8 == 0};
  const dim3 grid(grid_size(ceil_div(p.num_tokens, Tile::kRows)), short_grid_size(p.num_heads + 1),
                  short_grid_size(std::max(1, ceil_div(p.rank, Tile::kCols))));
  allow_dynamic_shared(queries_kernel<T>, Tile::kSharedBytes);
  launch_early(ctx, queries_kernel<T>, grid, Tile::kThreads, Tile::kSharedBytes, p);
}

}  // namespace

void mla_cached_attention(Context& ctx, const MlaCachedAttention& args, const MlaCachedAttentionPlan& plan) {
  const MlaSizes sizes = mla_sizes(args);
  const CachedAttention& attention = plan.latents;
  if (args.out.num_elements() == 0) return;
  NMOE_CHECK(sizes.tokens <= INT32_MAX && args.kv_up.dim(0) <= INT32_MAX, "{} tokens, {}", sizes.tokens,
             args.kv_up.shape());
  dispatch_act(args.q.dtype(), [&](auto element) { run<decltype(element)>(ctx, args, sizes, attention.q); });
  cached_attention(ctx, attention, plan.attention);
  // A head's w_v lies behind its w_k.
  const Tensor heads = args.kv_up.reshape({sizes.heads, (sizes.nope + sizes.value) * sizes.rank});
  invariant_batched_product(ctx, attention.out, heads.columns(sizes.nope * sizes.rank, heads.dim(1)), args.out);
}

}  // namespace nmoe::cuda
