// Checks, the table of who sees whom, delta, and the choice of a kernel.
#include <algorithm>
#include <climits>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/check.h"
#include "ops/cuda/device.cuh"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;

AttentionGeometry geometry_of(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& out, const Tensor& lse) {
  const int64_t T = q.dim(0), H = q.dim(1), G = k.dim(1), Dk = q.dim(2), Dv = v.dim(2);
  NMOE_CHECK(shape.num_seqs * shape.seq_len == T && T <= INT_MAX / 2 && G > 0 && H % G == 0 &&
                 k.shape() == Shape({T, G, Dk}) && v.shape() == Shape({T, G, Dv}) && out.shape() == Shape({T, H, Dv}) &&
                 lse.num_elements() == T * H,
             "attention over {} sequences of {}: q {}, k {}, v {}, out {}, lse {}", shape.num_seqs, shape.seq_len,
             q.shape(), k.shape(), v.shape(), out.shape(), lse.shape());
  const DType act = q.dtype();
  NMOE_CHECK((act == DType::kF32 || act == DType::kBF16) && k.dtype() == act && v.dtype() == act &&
                 out.dtype() == act && lse.dtype() == DType::kF32,
             "attention of q {}, k {}, v {} into {}, lse {}", dtype_name(act), dtype_name(k.dtype()),
             dtype_name(v.dtype()), dtype_name(out.dtype()), dtype_name(lse.dtype()));
  AttentionGeometry g{};
  g.T = static_cast<int>(T);
  g.S = static_cast<int>(shape.seq_len);
  g.H = static_cast<int>(H);
  g.G = static_cast<int>(G);
  g.Dk = static_cast<int>(Dk);
  g.Dv = static_cast<int>(Dv);
  g.scale = static_cast<float>(shape.scale);
  return g;
}

// The entry of sees[] of every token; a search in cu_seqlens each. What cu_seqlens says is cut to the token's sequence.
__global__ void __launch_bounds__(kThreads)
    sees_kernel(int T, int S, int window, const int32_t* cu_seqlens, int capacity, int2* sees) {
  const int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (t >= T) return;
  int begin = t / S * S, end = begin + S;
  if (cu_seqlens != nullptr) {
    int low = 0, high = capacity;  // to the first entry beyond t
    while (low < high) {
      const int middle = (low + high) / 2;
      if (cu_seqlens[middle] <= t) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low > 0) begin = max(begin, cu_seqlens[low - 1]);
    if (low < capacity) end = min(end, cu_seqlens[low]);
  }
  if (window > 0) {
    begin = max(begin, t - window + 1);
    end = min(end, t + min(window, T));
  }
  sees[t] = make_int2(begin, end);
}

// Claimed whether or not anything will run; two I32 a token.
Tensor claim_sees(ArenaScope& scope, const AttentionGeometry& g) { return scope.allocate(DType::kI32, {g.T, 2}); }

void find_sees(const AttentionShape& shape, const Tensor& storage, AttentionGeometry& g, cudaStream_t stream) {
  auto* sees = static_cast<int2*>(storage.raw());
  const bool has_documents = shape.cu_seqlens.defined();
  const int window = static_cast<int>(std::min<int64_t>(shape.window, g.T));
  sees_kernel<<<static_cast<unsigned>((g.T + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      g.T, g.S, window, has_documents ? shape.cu_seqlens.data<int32_t>() : nullptr,
      has_documents ? static_cast<int>(shape.cu_seqlens.dim(0)) : 0, sees);
  NMOE_CUDA_CHECK(cudaGetLastError());
  g.sees = sees;
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

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args) {
  AttentionGeometry g = geometry_of(args.shape, args.q, args.k, args.v, args.out, args.lse);
  ArenaScope scope(ctx.scratch);
  const Tensor sees = claim_sees(scope, g);
  if (ctx.counting() || g.T == 0) return;
  find_sees(args.shape, sees, g, ctx.stream);
  if (mma_attention_takes(g, args.q.dtype())) return mma_attention_forward(g, args, ctx.stream);
  plain_attention_forward(g, args, ctx.stream);
}

void attention_backward(Context& ctx, const AttentionBackward& args) {
  AttentionGeometry g = geometry_of(args.shape, args.q, args.k, args.v, args.out, args.lse);
  const DType act = args.q.dtype();
  NMOE_CHECK(args.dout.shape() == args.out.shape() && args.dq.shape() == args.q.shape() &&
                 args.dk.shape() == args.k.shape() && args.dv.shape() == args.v.shape() && args.dout.dtype() == act &&
                 args.dq.dtype() == act && args.dk.dtype() == act && args.dv.dtype() == act,
             "gradients of attention: dout {}, dq {}, dk {}, dv {} for q {}, k {}, v {} of {}", args.dout.shape(),
             args.dq.shape(), args.dk.shape(), args.dv.shape(), args.q.shape(), args.k.shape(), args.v.shape(),
             dtype_name(act));
  ArenaScope scope(ctx.scratch);
  const Tensor sees = claim_sees(scope, g), delta = scope.allocate(DType::kF32, args.lse.shape());
  if (ctx.counting() || g.T == 0) return;
  find_sees(args.shape, sees, g, ctx.stream);
  if (act == DType::kF32) {
    find_delta<float>(g, args, delta.data<float>(), ctx.stream);
  } else {
    find_delta<__nv_bfloat16>(g, args, delta.data<float>(), ctx.stream);
  }
  if (mma_attention_takes(g, act)) return mma_attention_backward(g, args, delta.data<float>(), ctx.stream);
  plain_attention_backward(g, args, delta.data<float>(), ctx.stream);
}

}  // namespace nmoe::cuda
