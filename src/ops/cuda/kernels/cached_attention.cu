// Attention of single tokens to a cache: in BF16 and usual sizes by tensor cores (cached_attention_groups.h), else a
// block for each (row, query head), an online softmax over tiles of keys (Milakov and Gimelshein, arXiv 1805.02867).
// Bound by reading the cache; the query heads of one key/value head read the same keys, the later ones from L2.
//
// The two products of absorbed MLA take a few tokens a block, which share what is read of the weights.
//
// All sums have an order that depends on sizes, position and window alone.
#include <algorithm>

#include "ops/cuda/cached_attention_scratch.h"
#include "ops/cuda/kernels/cached_attention_groups.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 128;  // of all kernels here but cache_write
constexpr int kWarps = kThreads / kWarp;
constexpr int kKeys = 2 * kWarp;  // of a tile: two a lane
constexpr int kTokens = 8;        // of a block of the products
constexpr int kValues = 16;       // of a block of the second one

__device__ float nan_value() { return __int_as_float(0x7FC00000); }

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    cache_write_kernel(const T* rows, int64_t stride, const int32_t* slots, const int32_t* positions, T* cache,
                       int64_t num_tokens, int64_t width, int64_t num_slots, int64_t capacity, int64_t cache_width,
                       int64_t offset, bool vector) {
  const int64_t token = Group::row();
  if (token >= num_tokens) return;
  const int64_t slot = slots[token], position = positions[token];
  if (slot < 0 || slot >= num_slots || position < 0 || position >= capacity) return;
  T* target = cache + (slot * capacity + position) * cache_width + offset;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8];
    load8(rows + token * stride, i, width, vector, values);
    store8(target, i, width, vector, values);
  }
}

// Sizes of cached attention. `query_stride`: from a token's queries to the next's. `value_width` is that of a cached
// position's values, `value_step` from one head's to the next's: 0 where keys are values.
struct AttentionSizes {
  int64_t num_heads, num_kv_heads, key, value, query_stride, value_width, value_step;
  int64_t num_slots, capacity, window;
  float scale;
  bool vector;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const T* q, const int32_t* slots, const int32_t* positions, const T* keys, const T* values, T* out,
                     AttentionSizes sizes) {
  extern __shared__ float shared[];
  float* query = shared;            // [key], times scale
  float* sums = query + sizes.key;  // [value]: of values, weighted by exp(score - highest)
  __shared__ float scores[kKeys];
  __shared__ float weights[kKeys];
  const int64_t token = blockIdx.x / sizes.num_heads, head = blockIdx.x % sizes.num_heads;
  const int64_t kv_head = head / (sizes.num_heads / sizes.num_kv_heads);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  out += (token * sizes.num_heads + head) * sizes.value;

  const int64_t slot = slots[token], position = positions[token];
  if (slot < 0 || slot >= sizes.num_slots || position < 0 || position >= sizes.capacity) {
    for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) out[d] = from_float<T>(nan_value());
    return;
  }
  const int64_t key_width = sizes.num_kv_heads * sizes.key;
  keys += slot * sizes.capacity * key_width + kv_head * sizes.key;
  values += slot * sizes.capacity * sizes.value_width + kv_head * sizes.value_step;
  q += token * sizes.query_stride + head * sizes.key;
  for (int64_t d = threadIdx.x; d < sizes.key; d += kThreads) query[d] = to_float(q[d]) * sizes.scale;
  for (int64_t d = threadIdx.x; d < sizes.value; d += kThreads) sums[d] = 0.0F;  // a thread's own throughout
  __syncthreads();

  // The same in every thread.
  float highest = -INFINITY, total = 0.0F;
  const int64_t first = sizes.window == 0 ? 0 : max(int64_t{0}, position - sizes.window + 1);
  for (int64_t tile = first; tile <= position; tile += kKeys) {
    const int num_keys = static_cast<int>(min(int64_t{kKeys}, position + 1 - tile));
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

// latent_q[t, h, r] = sum over n < nope of q[t, h, n] w_k[h, n, r]; after it the rotated part. Grid: tiles of kTokens
// tokens, heads, tiles of columns r; the rotated part is the first column tile's.
template <class T>
__global__ void __launch_bounds__(kThreads)
    absorb_query_kernel(const T* q, int64_t stride, const T* kv_up, T* latent_q, int64_t num_tokens, int64_t num_heads,
                        int64_t nope, int64_t rope, int64_t rank, int64_t head_rows) {
  extern __shared__ float shared[];  // [kTokens, nope] of the queries; 0 past the last token
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokens, head = blockIdx.y;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, num_tokens - begin));
  for (int64_t i = threadIdx.x; i < kTokens * nope; i += kThreads) {
    const int64_t t = i / nope, n = i % nope;
    shared[i] = t < tokens ? to_float(q[(begin + t) * stride + head * (nope + rope) + n]) : 0.0F;
  }
  __syncthreads();
  if (blockIdx.z == 0) {
    for (int64_t i = threadIdx.x; i < tokens * rope; i += kThreads) {
      const int64_t token = begin + i / rope, r = i % rope;
      latent_q[(token * num_heads + head) * (rank + rope) + rank + r] =
          q[token * stride + head * (nope + rope) + nope + r];
    }
  }
  const int64_t column = static_cast<int64_t>(blockIdx.z) * kThreads + threadIdx.x;
  if (column >= rank) return;
  const T* weights = kv_up + head * head_rows * rank + column;
  float sums[kTokens] = {};
#pragma unroll 16
  for (int64_t n = 0; n < nope; ++n) {
    const float weight = to_float(weights[n * rank]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[t] += shared[t * nope + n] * weight;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t < tokens) latent_q[((begin + t) * num_heads + head) * (rank + rope) + column] = from_float<T>(sums[t]);
  }
}

// out[t, h, v] = w_v[h, v] . latents[t, h]. Grid: tiles of kTokens tokens, heads, tiles of kValues v; a warp takes
// every kWarps-th v.
template <class T>
__global__ void __launch_bounds__(kThreads)
    expand_output_kernel(const T* latents, const T* kv_up, T* out, int64_t num_tokens, int64_t num_heads, int64_t rank,
                         int64_t value, int64_t head_rows, bool vector) {
  extern __shared__ float shared[];  // [kTokens, rank] of the latents; 0 past the last token
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokens, head = blockIdx.y;
  const int tokens = static_cast<int>(min(int64_t{kTokens}, num_tokens - begin));
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = threadIdx.x; i < kTokens * rank; i += kThreads) {
    const int64_t t = i / rank, r = i % rank;
    shared[i] = t < tokens ? to_float(latents[((begin + t) * num_heads + head) * rank + r]) : 0.0F;
  }
  __syncthreads();
  const T* weights = kv_up + ((head + 1) * head_rows - value) * rank;
#pragma unroll
  for (int i = 0; i < kValues; i += kWarps) {
    const int64_t v = static_cast<int64_t>(blockIdx.z) * kValues + i + warp;
    if (v >= value) continue;
    float sums[kTokens] = {};
    for (int64_t r = lane * 8; r < rank; r += kWarp * 8) {
      float row[8];
      load8(weights + v * rank, r, rank, vector, row);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (r + i < rank) {
#pragma unroll
          for (int t = 0; t < kTokens; ++t) sums[t] += shared[t * rank + r + i] * row[i];
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(sums[t]);
      if (lane == 0 && t < tokens) out[((begin + t) * num_heads + head) * value + v] = from_float<T>(sum);
    }
  }
}

// The bytes of `num_floats` in a block's shared memory.
size_t shared_bytes(int64_t num_floats) {
  const int64_t bytes = num_floats * static_cast<int64_t>(sizeof(float));
  NMOE_CHECK(bytes <= kDefaultSharedBytes - 1024, "a head too wide: {} bytes of shared memory", bytes);
  return static_cast<size_t>(bytes);
}

}  // namespace

void cache_write(Context& ctx, const CacheWrite& args) {
  const int64_t num_tokens = args.rows.dim(0), width = args.rows.dim(1), cache_width = args.cache.dim(2);
  NMOE_CHECK(args.slots.dim(0) == num_tokens && args.positions.dim(0) == num_tokens && args.offset >= 0 &&
                 args.offset + width <= cache_width && args.cache.dtype() == args.rows.dtype(),
             "rows {} {} at offset {} of a cache {} {}", dtype_name(args.rows.dtype()), args.rows.shape(), args.offset,
             dtype_name(args.cache.dtype()), args.cache.shape());
  if (ctx.counting() || args.rows.num_elements() == 0) return;
  const bool vector = can_vectorise(width, args.rows, args.cache) && cache_width % 8 == 0 && args.offset % 8 == 0;
  dispatch_act(args.rows.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(num_tokens, width, [&](auto group, unsigned grid) {
      cache_write_kernel<decltype(group), T><<<grid, kRowThreads, 0, ctx.stream>>>(
          args.rows.rows_data<T>(), args.rows.stride(), args.slots.data<int32_t>(), args.positions.data<int32_t>(),
          args.cache.data<T>(), num_tokens, width, args.cache.dim(0), args.cache.dim(1), cache_width, args.offset,
          vector);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void cached_attention(Context& ctx, const CachedAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), Dk = args.q.dim(2), Dv = args.out.dim(2);
  const int64_t G = args.num_kv_heads;
  const Tensor values = args.values.defined() ? args.values : args.keys;
  NMOE_CHECK(H % G == 0 && args.keys.dim(2) == G * Dk && args.out.dim(0) == T && args.out.dim(1) == H &&
                 (args.values.defined() ? values.dim(2) == G * Dv : G == 1 && Dv <= Dk) &&
                 values.dim(0) == args.keys.dim(0) && values.dim(1) == args.keys.dim(1) && args.slots.dim(0) == T &&
                 args.positions.dim(0) == T,
             "cached attention of q {} to keys {} and values {}, out {}", args.q.shape(), args.keys.shape(),
             args.values.shape(), args.out.shape());
  if (takes_head_groups(args)) return cached_attention_by_groups(ctx, args);
  const size_t num_bytes = shared_bytes(Dk + Dv);
  if (ctx.counting() || args.out.num_elements() == 0) return;
  const AttentionSizes sizes{H,
                             G,
                             Dk,
                             Dv,
                             args.q.stride(),
                             values.dim(2),
                             args.values.defined() ? Dv : 0,
                             args.keys.dim(0),
                             args.keys.dim(1),
                             args.window,
                             static_cast<float>(args.scale),
                             can_vectorise(Dk, args.keys)};
  dispatch_act(args.q.dtype(), [&](auto element) {
    using Act = decltype(element);
    attention_kernel<<<grid_size(T * H), kThreads, num_bytes, ctx.stream>>>(
        args.q.rows_data<Act>(), args.slots.data<int32_t>(), args.positions.data<int32_t>(), args.keys.data<Act>(),
        values.data<Act>(), args.out.data<Act>(), sizes);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void mla_absorb_query(Context& ctx, const MlaAbsorbQuery& args) {
  check_mla_absorb_query(args);
  const Tensor q = args.q, kv_up = args.kv_up, latent_q = args.latent_q;
  const int64_t T = q.dim(0), H = q.dim(1), rank = kv_up.dim(1), rope = latent_q.dim(2) - rank, nope = q.dim(2) - rope;
  const int64_t head_rows = kv_up.dim(0) / H;  // nope + Dv
  const size_t num_bytes = shared_bytes(kTokens * nope);
  if (ctx.counting() || latent_q.num_elements() == 0) return;
  const dim3 grid(grid_size(ceil_div(T, kTokens)), short_grid_size(H),
                  short_grid_size(std::max<int64_t>(1, ceil_div(rank, kThreads))));
  dispatch_act(q.dtype(), [&](auto element) {
    using Act = decltype(element);
    absorb_query_kernel<<<grid, kThreads, num_bytes, ctx.stream>>>(
        q.rows_data<Act>(), q.stride(), kv_up.data<Act>(), latent_q.data<Act>(), T, H, nope, rope, rank, head_rows);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void mla_expand_output(Context& ctx, const MlaExpandOutput& args) {
  check_mla_expand_output(args);
  const Tensor latents = args.latents, kv_up = args.kv_up, out = args.out;
  const int64_t T = latents.dim(0), H = latents.dim(1), rank = latents.dim(2), value = out.dim(2);
  const int64_t head_rows = kv_up.dim(0) / H;
  const size_t num_bytes = shared_bytes(kTokens * rank);
  if (ctx.counting() || out.num_elements() == 0) return;
  const dim3 grid(grid_size(ceil_div(T, kTokens)), short_grid_size(H), short_grid_size(ceil_div(value, kValues)));
  dispatch_act(out.dtype(), [&](auto element) {
    using Act = decltype(element);
    expand_output_kernel<<<grid, kThreads, num_bytes, ctx.stream>>>(latents.data<Act>(), kv_up.data<Act>(),
                                                                    out.data<Act>(), T, H, rank, value, head_rows,
                                                                    can_vectorise(rank, kv_up));
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
