// Checks, which keys each query attends to, delta, and what attention_engine (plans/attention.h) says:
//
//   kSm90    sm90/attention_forward.cuh
//   kCudnn   cuDNN, with documents and windows or without
//   kPlain   attention_plain.cu
#include <algorithm>
#include <climits>

#include "ops/cuda/kernels/attention/attention_plain.h"
#include "ops/cuda/kernels/attention/mla_parts.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/documents.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/vendor/cudnn_attention.h"

namespace nmoe::cuda {
namespace {

constexpr KernelSet kKernels{.major = NMOE_CUDA_MAJOR};
constexpr int kThreads = 256;

AttentionGeometry geometry_of(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t T = q.dim(0), H = q.dim(1), G = k.dim(1), Dk = q.dim(2), Dv = v.dim(2);
  AttentionGeometry g{};
  g.T = static_cast<int>(T);
  g.S = static_cast<int>(shape.seq_len);
  g.H = static_cast<int>(H);
  g.G = static_cast<int>(G);
  g.Dk = static_cast<int>(Dk);
  g.Dv = static_cast<int>(Dv);
  g.q_stride = q.stride();
  g.k_stride = k.stride();
  g.v_stride = v.stride();
  g.scale = static_cast<float>(shape.scale);
  return g;
}

__global__ void __launch_bounds__(kThreads)
    span_kernel(int T, int S, int window, const int32_t* cu_seqlens, int capacity, int2* spans) {
  const int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (t >= T) return;
  int2 span = document_of(t, S, cu_seqlens, capacity);
  if (window > 0) {
    span.x = max(span.x, t - window + 1);
    span.y = min(span.y, t + min(window, T));
  }
  spans[t] = span;
}

__global__ void __launch_bounds__(kThreads)
    first_keys_kernel(int T, int S, const int32_t* cu_seqlens, int capacity, int32_t* first_keys) {
  const int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (t < T) first_keys[t] = document_of(t, S, cu_seqlens, capacity).x - t / S * S;
}

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// Where each token's document begins, counted in its sequence: [T] I32, undefined without documents.
void find_first_keys(Context& ctx, const AttentionShape& shape, const Tensor& first_keys) {
  if (!first_keys.defined()) return;
  const int64_t T = first_keys.dim(0);
  first_keys_kernel<<<blocks_of(T), kThreads, 0, ctx.stream>>>(
      static_cast<int>(T), static_cast<int>(shape.seq_len), shape.cu_seqlens.data<int32_t>(),
      static_cast<int>(shape.cu_seqlens.dim(0)), first_keys.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void find_spans(const AttentionShape& shape, const Tensor& storage, AttentionGeometry& g, cudaStream_t stream) {
  auto* spans = static_cast<int2*>(storage.raw());
  const bool has_documents = shape.cu_seqlens.defined();
  const int window = static_cast<int>(std::min<int64_t>(shape.window, g.T));
  span_kernel<<<blocks_of(g.T), kThreads, 0, stream>>>(
      g.T, g.S, window, has_documents ? shape.cu_seqlens.data<int32_t>() : nullptr,
      has_documents ? static_cast<int>(shape.cu_seqlens.dim(0)) : 0, spans);
  NMOE_CUDA_CHECK(cudaGetLastError());
  g.spans = spans;
}

// A warp a head of a token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(AttentionGeometry g, const T* out, const T* dout, float* delta) {
  const int64_t index = blockIdx.x * static_cast<int64_t>(kThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= static_cast<int64_t>(g.T) * g.H) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0.0F;
  for (int d = lane; d < g.Dv; d += kWarp) sum += to_float(out[index * g.Dv + d]) * to_float(dout[index * g.Dv + d]);
  sum = warp_sum(sum);
  const int token = static_cast<int>(index / g.H), head = static_cast<int>(index % g.H);
  if (lane == 0) delta[statistic_index(g, token, head)] = sum;
}

template <class T>
void find_delta(const AttentionGeometry& g, const AttentionBackward& args, float* delta, cudaStream_t stream) {
  constexpr int64_t kHeadsPerBlock = kThreads / kWarp;
  const int64_t blocks = (static_cast<int64_t>(g.T) * g.H + kHeadsPerBlock - 1) / kHeadsPerBlock;
  delta_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      g, static_cast<const T*>(args.out.raw()), static_cast<const T*>(args.dout.raw()), delta);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// Of a chunk of rows and a head: exp(sink - lse) (dout . out), each row's by a thread, added up by one.
template <class T>
__global__ void __launch_bounds__(kSinkChunkRows) sink_sums_kernel(AttentionGeometry g, const T* out, const T* dout,
                                                                   const float* lse, const float* sinks, double* sums) {
  __shared__ double terms[kSinkChunkRows];
  const int head = static_cast<int>(blockIdx.y), row = static_cast<int>(threadIdx.x);
  const int64_t token = blockIdx.x * kSinkChunkRows + row;
  const int count = static_cast<int>(min(kSinkChunkRows, g.T - blockIdx.x * kSinkChunkRows));
  if (row < count) {
    const int64_t first = (token * g.H + head) * g.Dv;
    double delta = 0;
    for (int d = 0; d < g.Dv; ++d) delta += double{to_float(out[first + d])} * double{to_float(dout[first + d])};
    terms[row] = double{expf(sinks[head] - lse[statistic_index(g, static_cast<int>(token), head)])} * delta;
  }
  __syncthreads();
  if (row != 0) return;
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += terms[i];
  sums[blockIdx.x * static_cast<int64_t>(g.H) + head] = sum;
}

__global__ void __launch_bounds__(kThreads)
    subtract_sink_sums_kernel(const double* sums, float* dsinks, int num_chunks, int num_heads) {
  const int head = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (head >= num_heads) return;
  double total = sums[head];
#pragma unroll 8
  for (int chunk = 1; chunk < num_chunks; ++chunk) total += sums[static_cast<int64_t>(chunk) * num_heads + head];
  dsinks[head] -= static_cast<float>(total);
}

void sinks_backward(const AttentionGeometry& g, const AttentionBackward& args, const Tensor& sums,
                    cudaStream_t stream) {
  if (!args.sinks.defined()) return;
  const int64_t chunks = sums.dim(0);
  dispatch_act(args.q.dtype(), [&](auto element) {
    using T = decltype(element);
    sink_sums_kernel<T><<<dim3(grid_size(chunks), short_grid_size(g.H)), kSinkChunkRows, 0, stream>>>(
        g, args.out.data<T>(), args.dout.data<T>(), args.lse.data<float>(), args.sinks.data<float>(),
        sums.data<double>());
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  subtract_sink_sums_kernel<<<blocks_of(g.H), kThreads, 0, stream>>>(sums.data<double>(), args.dsinks.data<float>(),
                                                                     static_cast<int>(chunks), g.H);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// A gradient of what `rope` rotated, if it did.
void rotate_back(Context& ctx, Rope rope, const Tensor& gradient) {
  if (!rope.positions.defined()) return;
  rope.x = gradient;
  rope_backward(ctx, rope);
}
void rotate_back(Context& ctx, const AttentionBackward& args) {
  rotate_back(ctx, args.rope, args.dq);
  if (args.rope_keys) rotate_back(ctx, args.rope, args.dk);
}

void attend_parts_backward(Context& ctx, const MlaAttentionBackward& args, const MlaAttentionBackwardPlan& plan) {
  if constexpr (kKernels.has_sm90()) {
    find_first_keys(ctx, args.shape, plan.first_keys);
    sm90::mla_attention_backward(ctx, args, plan.dk_rope, plan.first_keys, plan.sm90);
    sum_heads(ctx, plan.dk_rope, args.dk_rope);
    if (!sm90_attention_rotates(args.q, args.rope, /*rope_keys=*/false)) rotate_back(ctx, args.rope, args.dq);
  }
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args, const AttentionForwardPlan& plan) {
  AttentionGeometry g = geometry_of(args.shape, args.q, args.k, args.v);
  if (g.T == 0) return;
  find_first_keys(ctx, args.shape, plan.first_keys);
  if constexpr (kKernels.has_sm90()) {
    if (plan.engine == AttentionEngine::kSm90) return sm90::attention_forward(ctx, args, plan.first_keys);
  }
  if (plan.engine == AttentionEngine::kCudnn) {
    return ctx.cudnn_attention.forward(ctx, args, plan.first_keys, plan.workspace);
  }
  find_spans(args.shape, plan.spans, g, ctx.stream);
  if (args.sinks.defined()) g.sinks = args.sinks.data<float>();
  plain_attention_forward(g, args, ctx.stream);
}

void attention_backward(Context& ctx, const AttentionBackward& args, const AttentionBackwardPlan& plan) {
  AttentionGeometry g = geometry_of(args.shape, args.q, args.k, args.v);
  const DType act = args.q.dtype();
  if (g.T == 0) return;
  sinks_backward(g, args, plan.sink_sums, ctx.stream);
  find_first_keys(ctx, args.shape, plan.first_keys);
  if constexpr (kKernels.has_sm90()) {
    if (plan.engine == AttentionEngine::kSm90) {
      sm90::attention_backward(ctx, args, plan.first_keys, plan.sm90);
      if (!sm90_attention_rotates(args.q, args.rope, args.rope_keys)) rotate_back(ctx, args);
      return;
    }
  }
  if (plan.engine == AttentionEngine::kCudnn) {
    ctx.cudnn_attention.backward(ctx, args, plan.first_keys, plan.cudnn);
    return rotate_back(ctx, args);
  }
  const Tensor& delta = plan.delta;
  find_spans(args.shape, plan.spans, g, ctx.stream);
  g.dq_stride = args.dq.stride();
  g.dk_stride = args.dk.stride();
  g.dv_stride = args.dv.stride();
  if (act == DType::kF32) {
    find_delta<float>(g, args, delta.data<float>(), ctx.stream);
  } else {
    find_delta<__nv_bfloat16>(g, args, delta.data<float>(), ctx.stream);
  }
  plain_attention_backward(g, args, delta.data<float>(), ctx.stream);
  rotate_back(ctx, args);
}

void mla_attention_forward(Context& ctx, const MlaAttentionForward& args, const MlaAttentionForwardPlan& plan) {
  if (args.q.dim(0) == 0) return;
  if constexpr (kKernels.has_sm90()) {
    if (plan.in_parts) {
      find_first_keys(ctx, args.shape, plan.first_keys);
      return sm90::mla_attention_forward(ctx, args, plan.first_keys);
    }
  }
  assemble_keys(ctx, args.kv, args.k_rope, plan.assembled.k, plan.assembled.v);
  attention_forward(ctx, plan.assembled, plan.whole);
}

void mla_attention_backward(Context& ctx, const MlaAttentionBackward& args, const MlaAttentionBackwardPlan& plan) {
  if (args.q.dim(0) == 0) return;
  if (plan.in_parts) {
    attend_parts_backward(ctx, args, plan);
  } else {
    const AttentionBackward& assembled = plan.assembled;
    assemble_keys(ctx, args.kv, args.k_rope, assembled.k, assembled.v);
    attention_backward(ctx, assembled, plan.whole);
    split_key_gradients(ctx, assembled.dk, assembled.dv, args.dkv, args.dk_rope);
  }
  if (!args.dkv_codes.defined()) return;
  const Tensor rows = args.dkv.reshape({args.dkv.dim(0), args.dkv.shape().row_elements()});
  quantize_fp8_rows(ctx, rows, /*num_rows=*/{}, args.dkv_codes);
}

}  // namespace nmoe::cuda
