// Attention of single tokens to a cache: in BF16 by tensor cores, for heads that our own kernels train with to their
// bits (cached_attention_blocks.h; prompts', and MLA's, on Hopper sm90/cached_attention.h), for others of usual sizes
// by groups (cached_attention_groups.h; prompts' to latents sm90/latent_attention.h), else a block for each (row, query
// head), an online softmax over tiles of keys (Milakov and Gimelshein, arXiv 1805.02867). Bound by reading the cache;
// the query heads of one key/value head read the same keys, the later ones from L2.
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
#include "ops/cuda/sm90/cached_attention.h"
#include "ops/cuda/sm90/latent_attention.h"

namespace nmoe::cuda {
namespace {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};
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

// Sizes of cached attention. `query_stride`: from a token's queries to the next's. Of a cached position, keys are
// `key_width` wide in all, and `key_step` lies between those of two heads; so it is with values, whose step is 0 where
// keys are values. Behind a head's own `key` elements come `shared_key` that all heads have.
struct CachedSizes {
  int64_t num_heads, num_kv_heads, key, shared_key, value, query_stride, key_width, key_step, value_width, value_step;
  int64_t window;
  float scale;
  bool vector;
};

// A lane's part of the product of a query with `size` elements of a key.
template <class T>
__device__ float part_of_score(const float* query, const T* key, int64_t size, bool vector, int lane) {
  float score = 0.0F;
  for (int64_t d = lane * 8; d < size; d += kWarp * 8) {
    float part[8];
    load8(key, d, size, vector, part);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (d + i < size) score += query[d + i] * part[i];
    }
  }
  return score;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const T* q, CachePlaces places, const T* keys, const T* shared_keys, const T* values, T* out,
                     CachedSizes sizes) {
  extern __shared__ float shared[];
  const int64_t whole_key = sizes.key + sizes.shared_key;
  float* query = shared;            // [whole_key], times scale
  float* sums = query + whole_key;  // [value]: of values, weighted by exp(score - highest)
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
  keys += seen.slot * places.capacity * sizes.key_width + kv_head * sizes.key_step;
  shared_keys += seen.slot * places.capacity * sizes.shared_key;
  values += seen.slot * places.capacity * sizes.value_width + kv_head * sizes.value_step;
  q += token * sizes.query_stride + head * whole_key;
  for (int64_t d = threadIdx.x; d < whole_key; d += kThreads) query[d] = to_float(q[d]) * sizes.scale;
  for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) sums[d] = 0.0F;  // a thread's own throughout
  __syncthreads();

  // The same in every thread.
  float highest = -INFINITY, total = 0.0F;
  for (int64_t tile = seen.begin; tile < seen.end; tile += kKeys) {
    const int num_keys = static_cast<int>(min(int64_t{kKeys}, seen.end - tile));
    for (int j = warp; j < num_keys; j += kWarps) {
      float score = part_of_score(query, keys + (tile + j) * sizes.key_width, sizes.key, sizes.vector, lane);
      if (sizes.shared_key > 0) {
        score += part_of_score(query + sizes.key, shared_keys + (tile + j) * sizes.shared_key, sizes.shared_key,
                               sizes.vector, lane);
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

// Args: CachedAttention or MlaExpandedAttention.
template <class Args>
void launch_attention(Context& ctx, const Args& args, Tensor keys, Tensor shared_keys, Tensor values,
                      int64_t value_offset, const CachedSizes& sizes) {
  if (args.out.num_elements() == 0) return;
  dispatch_act(args.q.dtype(), [&](auto element) {
    using Act = decltype(element);
    launch_early(ctx, attention_kernel<Act>, grid_size(args.q.dim(0) * sizes.num_heads), kThreads,
                 cached_head_bytes(args), args.q.template rows_data<Act>(), places_of(args.slots, args.positions, keys),
                 keys.data<Act>(), shared_keys.data<Act>(), values.data<Act>() + value_offset,
                 args.out.template data<Act>(), sizes);
  });
}

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
  if constexpr (kKernels.has_sm90()) {
    if (plan.way == CachedAttentionWay::kTiles) return sm90::cached_attention(ctx, args);
    if (plan.way == CachedAttentionWay::kLatentTiles) return sm90::latent_attention(ctx, args, plan.tiles);
  }
  if (plan.way == CachedAttentionWay::kBlocks) return cached_attention_by_blocks(ctx, args, plan.scores);
  if (plan.way == CachedAttentionWay::kGroups) return cached_attention_by_groups(ctx, args, plan);
  const int64_t Dk = args.q.dim(2), Dv = args.out.dim(2);
  const Tensor values = args.values.defined() ? args.values : args.keys;
  launch_attention(ctx, args, args.keys, args.keys, values, 0,
                   {.num_heads = args.q.dim(1),
                    .num_kv_heads = args.num_kv_heads,
                    .key = Dk,
                    .shared_key = 0,
                    .value = Dv,
                    .query_stride = args.q.stride(),
                    .key_width = args.keys.dim(2),
                    .key_step = Dk,
                    .value_width = values.dim(2),
                    .value_step = args.values.defined() ? Dv : 0,
                    .window = args.window,
                    .scale = static_cast<float>(args.scale),
                    .vector = can_vectorise(Dk, args.keys)});
}

void mla_expanded_attention(Context& ctx, const MlaExpandedAttention& args, const MlaExpandedAttentionPlan& plan) {
  if constexpr (kKernels.has_sm90()) {
    if (plan.way == CachedAttentionWay::kTiles) return sm90::mla_expanded_attention(ctx, args);
  }
  if (plan.way == CachedAttentionWay::kBlocks) return cached_attention_by_blocks(ctx, args, plan.scores);
  const int64_t H = args.q.dim(1), Dv = args.out.dim(2), rope = args.k_rope.dim(2), nope = args.q.dim(2) - rope;
  launch_attention(ctx, args, args.kv, args.k_rope, args.kv, nope,
                   {.num_heads = H,
                    .num_kv_heads = H,
                    .key = nope,
                    .shared_key = rope,
                    .value = Dv,
                    .query_stride = args.q.stride(),
                    .key_width = args.kv.dim(2),
                    .key_step = nope + Dv,
                    .value_width = args.kv.dim(2),
                    .value_step = nope + Dv,
                    .window = args.window,
                    .scale = static_cast<float>(args.scale),
                    .vector = can_vectorise(nope, args.kv) && can_vectorise(rope, args.k_rope) && Dv % 8 == 0});
}

}  // namespace nmoe::cuda
