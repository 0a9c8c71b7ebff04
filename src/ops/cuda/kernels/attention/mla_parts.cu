// Copies between MLA's parts and whole heads. A block takes a token.
#include "ops/cuda/kernels/attention/mla_parts.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/mla_assembly.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;

// What all kernels know of a token.
struct Sizes {
  int64_t num_heads, nope, rope, value;
  int64_t rope_stride;  // from a token's shared part to the next's
  bool vector;
};

// The block copies `width` values of each head; the heads lie `stride` apart.
template <class T>
__device__ void copy_heads(const T* source, int64_t source_stride, T* target, int64_t target_stride, int64_t width,
                           const Sizes& sizes) {
  const int chunks = static_cast<int>(ceil_div(width, 8)), tasks = static_cast<int>(sizes.num_heads) * chunks;
  for (int task = static_cast<int>(threadIdx.x); task < tasks; task += kThreads) {
    const int64_t head = task / chunks, i = static_cast<int64_t>(task % chunks) * 8;
    float values[8];
    load8(source + head * source_stride, i, width, sizes.vector, values);
    store8(target + head * target_stride, i, width, sizes.vector, values);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) assemble_kernel(const T* kv, const T* k_rope, T* k, T* v, Sizes sizes) {
  const int64_t token = blockIdx.x, kv_head = sizes.nope + sizes.value, k_head = sizes.nope + sizes.rope;
  kv += token * sizes.num_heads * kv_head;
  k += token * sizes.num_heads * k_head;
  v += token * sizes.num_heads * sizes.value;
  copy_heads(kv, kv_head, k, k_head, sizes.nope, sizes);
  copy_heads(k_rope + token * sizes.rope_stride, 0, k + sizes.nope, k_head, sizes.rope, sizes);
  copy_heads(kv + sizes.nope, kv_head, v, sizes.value, sizes.value, sizes);
}

template <class T>
__global__ void __launch_bounds__(kThreads) split_kernel(const T* dk, const T* dv, T* dkv, Sizes sizes) {
  const int64_t token = blockIdx.x, kv_head = sizes.nope + sizes.value, k_head = sizes.nope + sizes.rope;
  dkv += token * sizes.num_heads * kv_head;
  copy_heads(dk + token * sizes.num_heads * k_head, k_head, dkv, kv_head, sizes.nope, sizes);
  copy_heads(dv + token * sizes.num_heads * sizes.value, sizes.value, dkv + sizes.nope, kv_head, sizes.value, sizes);
}

// A thread has eight values of a token's sum over heads, which lie `head_stride` apart.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_heads_kernel(const T* of_heads, int64_t head_stride, T* dk_rope, int64_t num_tokens, Sizes sizes) {
  const int64_t chunks = ceil_div<int64_t>(sizes.rope, 8),
                task = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (task >= num_tokens * chunks) return;
  const int64_t token = task / chunks, i = task % chunks * 8;
  float total[8] = {};
#pragma unroll 8
  for (int head = 0; head < static_cast<int>(sizes.num_heads); ++head) {
    float values[8];
    load8(of_heads + (token * sizes.num_heads + head) * head_stride, i, sizes.rope, sizes.vector, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) total[j] += values[j];
  }
  store8(dk_rope + token * sizes.rope_stride, i, sizes.rope, sizes.vector, total);
}

// Of either direction; the gradients have the shapes of what they are gradients of.
Sizes checked_sizes(Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  const int64_t num_tokens = kv.dim(0), num_heads = kv.dim(1), rope = k_rope.dim(1), value = v.dim(2);
  const int64_t nope = k.dim(2) - rope;
  NMOE_CHECK(num_heads * (nope + rope + value) <= std::numeric_limits<int32_t>::max(), "a token of {}", k.shape());
  const bool vector = nope % 8 == 0 && rope % 8 == 0 && can_vectorise(value, kv, k_rope, k, v);
  return {num_heads, nope, rope, value, k_rope.stride(), vector};
}

// The values that heads share begin at the `first`th of each head of `of_heads` [T, H, ...].
void sum_heads_from(Context& ctx, Tensor of_heads, int64_t first, Tensor dk_rope, const Sizes& sizes) {
  const int64_t num_tokens = of_heads.dim(0), tasks = num_tokens * ceil_div<int64_t>(sizes.rope, 8);
  if (tasks == 0) return;
  dispatch_act(of_heads.dtype(), [&](auto element) {
    using T = decltype(element);
    sum_heads_kernel<<<grid_size(ceil_div<int64_t>(tasks, kThreads)), kThreads, 0, ctx.stream>>>(
        of_heads.data<T>() + first, of_heads.dim(2), dk_rope.rows_data<T>(), num_tokens, sizes);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void assemble_keys(Context& ctx, Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  const Sizes sizes = checked_sizes(kv, k_rope, k, v);
  if (kv.dim(0) == 0) return;
  dispatch_act(kv.dtype(), [&](auto element) {
    using T = decltype(element);
    assemble_kernel<<<grid_size(kv.dim(0)), kThreads, 0, ctx.stream>>>(kv.data<T>(), k_rope.rows_data<T>(), k.data<T>(),
                                                                       v.data<T>(), sizes);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void split_key_gradients(Context& ctx, Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope) {
  const Sizes sizes = checked_sizes(dkv, dk_rope, dk, dv);
  if (dkv.dim(0) == 0) return;
  dispatch_act(dkv.dtype(), [&](auto element) {
    using T = decltype(element);
    split_kernel<<<grid_size(dkv.dim(0)), kThreads, 0, ctx.stream>>>(dk.data<T>(), dv.data<T>(), dkv.data<T>(), sizes);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  sum_heads_from(ctx, dk, sizes.nope, dk_rope, sizes);
}

void sum_heads(Context& ctx, Tensor of_heads, Tensor dk_rope) {
  const int64_t rope = of_heads.dim(2);
  sum_heads_from(ctx, of_heads, 0, dk_rope,
                 {.num_heads = of_heads.dim(1),
                  .nope = 0,
                  .rope = rope,
                  .value = 0,
                  .rope_stride = dk_rope.stride(),
                  .vector = can_vectorise(rope, of_heads, dk_rope)});
}

void mla_tree_attention(Context& ctx, const MlaTreeAttention& args, const TreeAttention& assembled) {
  assemble_keys(ctx, args.kv, args.k_rope, assembled.k, assembled.v);
  tree_attention(ctx, assembled);
}

}  // namespace nmoe::cuda
