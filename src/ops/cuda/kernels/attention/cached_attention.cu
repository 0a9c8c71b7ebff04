// Attention of single tokens to a cache: in BF16 by tensor cores, for heads that our own kernels train with to their
// bits (cached_attention_blocks.h), for others of usual sizes by groups (cached_attention_groups.h), else a block for
// each (row, query head), an online softmax over tiles of keys (Milakov and Gimelshein, arXiv 1805.02867).
// Bound by reading the cache; the query heads of one key/value head read the same keys, the later ones from L2.
//
// All sums have an order that depends on sizes, position and window alone.
#include <algorithm>

#include "ops/cuda/kernels/attention/cached_attention_blocks.h"
#include "ops/cuda/kernels/attention/cached_attention_groups.h"
#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 128;  // of attention
constexpr int kWarps = kThreads / kWarp;
constexpr int kKeys = 2 * kWarp;  // of a tile: two a lane

__device__ float nan_value() { return __int_as_float(0x7FC00000); }

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    cache_write_kernel(const T* rows, int64_t stride, CachePlaces places, T* cache, int64_t num_tokens, int64_t width,
                       int64_t cache_width, int64_t offset, bool vector) {
  begin_behind_work_before();
  const int64_t token = Group::row();
  if (token >= num_tokens) return;
  const Seen seen = seen_by(places, token, /*window=*/0);
  if (!seen.exists()) return;
  T* target = cache + (seen.slot * places.capacity + seen.position()) * cache_width + offset;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8];
    load8(rows + token * stride, i, width, vector, values);
    store8(target, i, width, vector, values);
  }
}

// Sizes of cached attention. `query_stride`: from a token's queries to the next's. `value_width` is that of a cached
// position's values, `value_step` from one head's to the next's: 0 where keys are values.
struct CachedSizes {
  int64_t num_heads, num_kv_heads, key, value, query_stride, value_width, value_step;
  int64_t window;
  float scale;
  bool vector;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const T* q, CachePlaces places, const T* keys, const T* values, T* out, CachedSizes sizes) {
  extern __shared__ float shared[];
  float* query = shared;            // [key], times scale
  float* sums = query + sizes.key;  // [value]: of values, weighted by exp(score - highest)
  __shared__ float scores[kKeys];
  __shared__ float weights[kKeys];
  begin_behind_work_before();
  const int64_t token = blockIdx.x / sizes.num_heads, head = blockIdx.x % sizes.num_heads;
  const int64_t kv_head = head / (sizes.num_heads / sizes.num_kv_heads);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  out += (token * sizes.num_heads + head) * sizes.value;

  const Seen seen = seen_by(places, token, sizes.window);
  if (!seen.exists()) {
    for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) out[d] = from_float<T>(nan_value());
    return;
  }
  const int64_t key_width = sizes.num_kv_heads * sizes.key;
  keys += seen.slot * places.capacity * key_width + kv_head * sizes.key;
  values += seen.slot * places.capacity * sizes.value_width + kv_head * sizes.value_step;
  q += token * sizes.query_stride + head * sizes.key;
  for (int64_t d = threadIdx.x; d < sizes.key; d += kThreads) query[d] = to_float(q[d]) * sizes.scale;
  for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) sums[d] = 0.0F;  // a thread's own throughout
  __syncthreads();

  // The same in every thread.
  float highest = -INFINITY, total = 0.0F;
  for (int64_t tile = seen.begin; tile < seen.end; tile += kKeys) {
    const int num_keys = static_cast<int>(min(int64_t{kKeys}, seen.end - tile));
    for (int j = warp; j < num_keys; j += kWarps) {
      const T* key = keys + (tile + j) * key_width;
      float score = 0.0F;
      for (int64_t d = lane * 8; d < sizes.key; d += kWarp * 8) {
        float part[8];
        load8(key, d, sizes.key, sizes.vector, part);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (d + i < sizes.key) score += query[d + i] * part[i];
        }
      }
      score = warp_sum(score);
      if (lane == 0) scores[j] = score;
    }
    __syncthreads();  // scores are there
    const float score_a = lane < num_keys ? scores[lane] : -INFINITY;
    const float score_b = lane + kWarp < num_keys ? scores[lane + kWarp] : -INFINITY;
    const float new_highest = fmaxf(highest, warp_max(fmaxf(score_a, score_b)));
    const float weight_a = expf(score_a - new_highest), weight_b = expf(score_b - new_highest);
    const float fade = expf(highest - new_highest);
    total = total * fade + warp_sum(weight_a + weight_b);
    highest = new_highest;
    if (warp == 0) {
      weights[lane] = weight_a;
      weights[lane + kWarp] = weight_b;
    }
    __syncthreads();  // weights are there, and scores may be overwritten
    for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) {
      const T* value = values + tile * sizes.value_width + d;
      float sum = sums[d] * fade;
      for (int j = 0; j < num_keys; ++j) sum += weights[j] * to_float(value[j * sizes.value_width]);
      sums[d] = sum;
    }
    // The next tile writes weights only after all threads have passed its first barrier.
  }
  for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) out[d] = from_float<T>(sums[d] / total);
}

CachePlaces places_of(Tensor slots, Tensor positions, Tensor cache) {
  return {.slots = slots.data<int32_t>(),
          .positions = positions.data<int32_t>(),
          .num_slots = cache.dim(0),
          .capacity = cache.dim(1)};
}

static_assert(kMaxCachedHeadBytes <= kDefaultSharedBytes - 1024);

}  // namespace

void cache_write(Context& ctx, const CacheWrite& args) {
  const int64_t num_tokens = args.rows.dim(0), width = args.rows.dim(1), cache_width = args.cache.dim(2);
  if (args.rows.num_elements() == 0) return;
  const bool vector = can_vectorise(width, args.rows, args.cache) && cache_width % 8 == 0 && args.offset % 8 == 0;
  dispatch_act(args.rows.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(num_tokens, width, [&](auto group, unsigned grid) {
      launch_early(ctx, cache_write_kernel<decltype(group), T>, grid, kRowThreads, 0, args.rows.rows_data<T>(),
                   args.rows.stride(), places_of(args.slots, args.positions, args.cache), args.cache.data<T>(),
                   num_tokens, width, cache_width, args.offset, vector);
    });
  });
}

void cached_attention(Context& ctx, const CachedAttention& args, const CachedAttentionPlan& plan) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.out.dim(2);
  const int64_t G = args.num_kv_heads;
  const Tensor values = args.values.defined() ? args.values : args.keys;
  if (plan.way == CachedAttentionWay::kBlocks) return cached_attention_by_blocks(ctx, args, plan);
  if (plan.way == CachedAttentionWay::kGroups) return cached_attention_by_groups(ctx, args, plan);
  const int64_t num_bytes = cached_head_bytes(args);
  if (args.out.num_elements() == 0) return;
  const CachedSizes sizes{H,
                          G,
                          Dk,
                          Dv,
                          args.q.stride(),
                          values.dim(2),
                          args.values.defined() ? Dv : 0,
                          args.window,
                          static_cast<float>(args.scale),
                          can_vectorise(Dk, args.keys)};
  dispatch_act(args.q.dtype(), [&](auto element) {
    using Act = decltype(element);
    launch_early(ctx, attention_kernel<Act>, grid_size(T * H), kThreads, num_bytes, args.q.rows_data<Act>(),
                 places_of(args.slots, args.positions, args.keys), args.keys.data<Act>(), values.data<Act>(),
                 args.out.data<Act>(), sizes);
  });
}

}  // namespace nmoe::cuda
