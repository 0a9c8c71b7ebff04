// Attention of single tokens to a cache: in BF16 by tensor cores, for heads that our own kernels train with to their
// bits (cached_attention_blocks.h; prompts', and MLA's, on Hopper sm90/cached_attention.h), for others of usual sizes
// by groups (cached_attention_groups.h; prompts' to latents sm90/latent_attention.h), else a block for each (row, query
// head), an online softmax over 32 keys at a time (Milakov and Gimelshein, arXiv 1805.02867) with the bits of
// training's plain kernel (primitives/row_softmax.cuh). Bound by reading the cache; the query heads of one key/value
// head read the same keys, the later ones from L2.
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
#include "ops/cuda/primitives/row_softmax.cuh"
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
constexpr int kKeys = kThreads;  // of a tile: one a thread, 32 a step

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
  T* target = cache + places.row_of(seen.slot, seen.position()) * cache_width + offset;
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
  const float* sinks;  // of query heads, or null
};

// The cache's rows of a tile, which may begin in one page and end in the next.
struct TileRows {
  int64_t first, second;  // of the tile's first key, and of the first that is in the next page
  int split;              // how many are in the first page

  __device__ TileRows(const CachePlaces& places, int64_t slot, int64_t begin, int num_keys)
      : first(places.row_of(slot, begin)), second(0), split(static_cast<int>(kPagePositions - begin % kPagePositions)) {
    if (split < num_keys) second = places.row_of(slot, begin + split);
  }
  __device__ int64_t operator[](int key) const { return key < split ? first + key : second + (key - split); }
};
static_assert(kKeys <= kPagePositions);

// sum + the product of a query with `size` elements of a key, ascending.
template <class T>
__device__ float add_product(float sum, const float* query, const T* key, int64_t size, bool vector) {
  for (int64_t d = 0; d < size; d += 8) {
    float part[8];
    load8(key, d, size, vector, part);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (d + i < size) sum = fmaf(query[d + i], part[i], sum);
    }
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const T* q, CachePlaces places, const T* keys, const T* shared_keys, const T* values, T* out,
                     CachedSizes sizes) {
  extern __shared__ float shared[];
  const int64_t whole_key = sizes.key + sizes.shared_key;
  float* query = shared;            // [whole_key]
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
  keys += kv_head * sizes.key_step;
  values += kv_head * sizes.value_step;
  q += token * sizes.query_stride + head * whole_key;
  for (int64_t d = threadIdx.x; d < whole_key; d += kThreads) query[d] = to_float(q[d]);
  for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) sums[d] = 0.0F;  // a thread's own throughout
  __syncthreads();

  RowSoftmax softmax;  // the same in every thread
  for (int64_t tile = seen.begin; tile < seen.end; tile += kKeys) {
    const int num_keys = static_cast<int>(min(int64_t{kKeys}, seen.end - tile)), thread = static_cast<int>(threadIdx.x);
    const TileRows rows(places, seen.slot, tile, num_keys);
    float score = -INFINITY;
    if (thread < num_keys) {
      float product = add_product(0.0F, query, keys + rows[thread] * sizes.key_width, sizes.key, sizes.vector);
      if (sizes.shared_key > 0) {
        product = add_product(product, query + sizes.key, shared_keys + rows[thread] * sizes.shared_key,
                              sizes.shared_key, sizes.vector);
      }
      score = score_of(sizes.scale, product);
    }
    scores[thread] = score;
    __syncthreads();  // scores are there
    float fades[kWarps];
#pragma unroll
    for (int step = 0; step < kWarps; ++step) {
      if (step * kWarp >= num_keys) break;
      const RowSoftmax::Step result = softmax.follow(scores[step * kWarp + lane]);
      fades[step] = result.fade;
      if (warp == step) weights[thread] = result.weight;
    }
    __syncthreads();  // weights are there, and scores may be overwritten
    for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) {
      float sum = sums[d];
#pragma unroll
      for (int step = 0; step < kWarps; ++step) {
        const int first = step * kWarp;
        if (first >= num_keys) break;
        sum *= fades[step];
        for (int j = first; j < min(first + kWarp, num_keys); ++j) {
          sum = fmaf(weights[j], to_float(values[rows[j] * sizes.value_width + d]), sum);
        }
      }
      sums[d] = sum;
    }
    // The next tile writes weights only after all threads have passed its first barrier.
  }
  const float factor = softmax.end(sizes.sinks != nullptr ? sizes.sinks + head : nullptr).factor;
  for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) out[d] = from_float<T>(sums[d] * factor);
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
                 cached_head_bytes(args), args.q.template rows_data<Act>(), places_of(args), keys.data<Act>(),
                 shared_keys.data<Act>(), values.data<Act>() + value_offset, args.out.template data<Act>(), sizes);
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
                   args.rows.stride(), places_of(args), args.cache.data<T>(), num_tokens, width, cache_width,
                   args.offset, vector);
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
                    .vector = can_vectorise(Dk, args.keys),
                    .sinks = args.sinks.data_or_null<float>()});
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
                    .vector = can_vectorise(nope, args.kv) && can_vectorise(rope, args.k_rope) && Dv % 8 == 0,
                    .sinks = nullptr});
}

}  // namespace nmoe::cuda
