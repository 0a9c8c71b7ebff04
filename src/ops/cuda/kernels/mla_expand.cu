// Copies between [T, H, nope + Dv] with a shared [T, rope], and k [T, H, nope + rope] with v [T, H, Dv]; memory-bound.
// A block takes a token. Backward adds up the heads' gradients of the shared part in the heads' order, and may leave
// codes of the others.
#include "ops/cuda/kernels/quantize_fp8.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/packed.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;

// What both directions know of a token.
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
__global__ void __launch_bounds__(kThreads) forward_kernel(const T* kv, const T* k_rope, T* k, T* v, Sizes sizes) {
  const int64_t token = blockIdx.x, kv_head = sizes.nope + sizes.value, k_head = sizes.nope + sizes.rope;
  kv += token * sizes.num_heads * kv_head;
  k += token * sizes.num_heads * k_head;
  v += token * sizes.num_heads * sizes.value;
  copy_heads(kv, kv_head, k, k_head, sizes.nope, sizes);
  copy_heads(k_rope + token * sizes.rope_stride, 0, k + sizes.nope, k_head, sizes.rope, sizes);
  copy_heads(kv + sizes.nope, kv_head, v, sizes.value, sizes.value, sizes);
}

// kCodes: sizes.vector, and dkv's rows are whole blocks of codes, each of which 16 threads have.
template <class T, bool kCodes>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* dk, const T* dv, T* dkv, T* dk_rope, Sizes sizes, CodeRows codes) {
  const int64_t token = blockIdx.x, kv_head = sizes.nope + sizes.value, k_head = sizes.nope + sizes.rope;
  dk += token * sizes.num_heads * k_head;
  dv += token * sizes.num_heads * sizes.value;
  dkv += token * sizes.num_heads * kv_head;
  for (int64_t i = threadIdx.x; i < sizes.rope; i += kThreads) {
    float total = 0.0F;
#pragma unroll 16
    for (int head = 0; head < static_cast<int>(sizes.num_heads); ++head) {
      total += to_float(dk[head * k_head + sizes.nope + i]);
    }
    dk_rope[token * sizes.rope_stride + i] = from_float<T>(total);
  }
  // All of a thread's pieces are on their way before it writes one.
  constexpr int kPieces = 4;
  const int nope_chunks = static_cast<int>(ceil_div(sizes.nope, 8));
  const int chunks = nope_chunks + static_cast<int>(ceil_div(sizes.value, 8));
  const int tasks = static_cast<int>(sizes.num_heads) * chunks;
  for (int first = static_cast<int>(threadIdx.x); first < tasks; first += kPieces * kThreads) {
    Packed8<T> pieces[kPieces];
    const auto each = [&](const auto& fn) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int task = first + p * kThreads, head = task / chunks, chunk = task % chunks;
        if (task < tasks)
          fn(pieces[p], head, chunk < nope_chunks, (chunk < nope_chunks ? chunk : chunk - nope_chunks) * 8);
      }
    };
    each([&](Packed8<T>& piece, int head, bool nope, int i) {
      piece = nope ? fetch8(dk + head * k_head, i, sizes.nope, sizes.vector)
                   : fetch8(dv + head * sizes.value, i, sizes.value, sizes.vector);
    });
    each([&](const Packed8<T>& piece, int head, bool nope, int i) {
      float values[8];
      unpack8(piece, values);
      const int64_t col = head * kv_head + (nope ? 0 : sizes.nope);
      store8(dkv + col, i, nope ? sizes.nope : sizes.value, sizes.vector, values);
      if constexpr (kCodes) codes.store8<T>(token, col + i, values);
    });
  }
}

// Of either direction; the gradients have the shapes of what they are gradients of.
Sizes checked_sizes(Tensor kv, Tensor k_rope, Tensor k, Tensor v) {
  const int64_t num_tokens = kv.dim(0), num_heads = kv.dim(1), rope = k_rope.dim(1), value = v.dim(2);
  const int64_t nope = k.dim(2) - rope;
  NMOE_CHECK(nope >= 0 && kv.dim(2) == nope + value && k.dim(0) == num_tokens && v.dim(0) == num_tokens &&
                 k_rope.dim(0) == num_tokens && k.dim(1) == num_heads && v.dim(1) == num_heads,
             "kv {}, k_rope {}, k {} and v {} disagree", kv.shape(), k_rope.shape(), k.shape(), v.shape());
  NMOE_CHECK(num_heads * (nope + rope + value) <= std::numeric_limits<int32_t>::max(), "a token of {}", k.shape());
  const bool vector = nope % 8 == 0 && rope % 8 == 0 && can_vectorise(value, kv, k_rope, k, v);
  return {num_heads, nope, rope, value, k_rope.stride(), vector};
}

}  // namespace

void mla_expand_forward(Context& ctx, const MlaExpandForward& args) {
  const Tensor kv = args.kv, k_rope = args.k_rope, k = args.k, v = args.v;

  const Sizes sizes = checked_sizes(kv, k_rope, k, v);
  if (ctx.counting() || kv.dim(0) == 0) return;
  dispatch_act(kv.dtype(), [&](auto element) {
    using T = decltype(element);
    forward_kernel<<<grid_size(kv.dim(0)), kThreads, 0, ctx.stream>>>(kv.data<T>(), k_rope.rows_data<T>(), k.data<T>(),
                                                                      v.data<T>(), sizes);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void mla_expand_backward(Context& ctx, const MlaExpandBackward& args) {
  const Tensor dk = args.dk, dv = args.dv, dkv = args.dkv, dk_rope = args.dk_rope;

  const Sizes sizes = checked_sizes(dkv, dk_rope, dk, dv);
  if (ctx.counting() || dkv.dim(0) == 0) return;
  const Tensor rows = dkv.reshape({dkv.dim(0), dkv.dim(1) * dkv.dim(2)});
  const bool with_codes = sizes.vector && makes_codes(rows, 1, args.dkv_codes);
  const CodeRows codes = with_codes ? code_rows(rows, args.dkv_codes) : CodeRows{};
  dispatch_act(dkv.dtype(), [&](auto element) {
    using T = decltype(element);
    auto* kernel = backward_kernel<T, false>;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (with_codes) kernel = backward_kernel<T, true>;
    }
    kernel<<<grid_size(dkv.dim(0)), kThreads, 0, ctx.stream>>>(dk.data<T>(), dv.data<T>(), dkv.data<T>(),
                                                               dk_rope.rows_data<T>(), sizes, codes);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  if (args.dkv_codes.defined() && !with_codes) quantize_fp8_rows(ctx, rows, /*num_rows=*/{}, args.dkv_codes);
}

}  // namespace nmoe::cuda
