// Attention for any head sizes, one warp a query (forward, dq) or a key (dk, dv).
//
//   forward    p_j = exp(x_j - lse), x_j = scale * q.k_j;  out = sum_j p_j v_j, by a running softmax over 32 keys at a
//              time (primitives/row_softmax.cuh), with the bits that a cache gives (cached_attention.cu)
//   backward   ds_j = p_j (dout.v_j - delta);  dq = scale * sum_j ds_j k_j;  dk = scale * sum_i ds_i q_i;
//              dv = sum_i p_i dout_i, over the query heads of the group in their order (arXiv 2307.08691, algorithm 2)
//
// A lane computes one score; then lanes take the dimensions of a head. Vectors that a warp keeps are F32 in shared
// memory. Every score reads its key from L1 or L2: for head sizes and dtypes that nothing faster takes.
#include "ops/cuda/kernels/attention/attention_plain.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_softmax.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// Which row a warp works on: row-major over tokens and `num_heads`.
struct Row {
  int token, head;
  int64_t index;
  bool exists;
};
__device__ Row row_of_warp(const AttentionGeometry& g, int num_heads) {
  const int64_t index = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / kWarp;
  return {static_cast<int>(index / num_heads), static_cast<int>(index % num_heads), index,
          index < static_cast<int64_t>(g.T) * num_heads};
}
__device__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ int warp_of() { return static_cast<int>(threadIdx.x) / kWarp; }

// A head of a token in a [T, heads, size] tensor whose rows are `stride` apart.
template <class T>
__device__ T* head_row(T* x, int token, int64_t stride, int head, int size) {
  return x + token * stride + head * size;
}

template <class T>
__device__ float dot(const float* a, const T* b, int size) {
  float sum = 0.0F;
  for (int d = 0; d < size; ++d) sum = fmaf(a[d], to_float(b[d]), sum);
  return sum;
}

// Between a row and shared memory, by the warp.
template <class T>
__device__ void load_row(float* to, const T* from, int size) {
  for (int d = lane_of(); d < size; d += kWarp) to[d] = to_float(from[d]);
}
template <class T>
__device__ void store_row(T* to, const float* from, int size, float factor) {
  for (int d = lane_of(); d < size; d += kWarp) to[d] = from_float<T>(from[d] * factor);
}
__device__ void zero_row(float* x, int size) {
  for (int d = lane_of(); d < size; d += kWarp) x[d] = 0.0F;
}

// sum[d] = sum[d] * correction + weights[i] * rows[i][d] for i < count; a row is `stride` after the one before.
template <class T>
__device__ void add_rows(float* sum, int size, float correction, const float* weights, const T* rows, int64_t stride,
                         int count) {
  for (int d = lane_of(); d < size; d += kWarp) {
    float total = sum[d] * correction;
    for (int i = 0; i < count; ++i) total = fmaf(weights[i], to_float(rows[i * stride + d]), total);
    sum[d] = total;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(AttentionGeometry g, const T* q, const T* k, const T* v, T* out, float* lse) {
  extern __shared__ float shared[];
  float* q_row = shared + warp_of() * (g.Dk + g.Dv + kWarp);
  float* sum = q_row + g.Dk;
  float* weights = sum + g.Dv;
  const Row row = row_of_warp(g, g.H);
  if (!row.exists) return;
  const int i = row.token, kv_head = row.head / (g.H / g.G), lane = lane_of();
  load_row(q_row, head_row(q, i, g.q_stride, row.head, g.Dk), g.Dk);
  zero_row(sum, g.Dv);
  __syncwarp();

  RowSoftmax softmax;
  for (int first = g.spans[i].x; first <= i; first += kWarp) {
    const int j = first + lane;
    const RowSoftmax::Step step = softmax.follow(
        j <= i ? score_of(g.scale, dot(q_row, head_row(k, j, g.k_stride, kv_head, g.Dk), g.Dk)) : -INFINITY);
    weights[lane] = step.weight;
    __syncwarp();
    add_rows(sum, g.Dv, step.fade, weights, head_row(v, first, g.v_stride, kv_head, g.Dv), g.v_stride,
             min(kWarp, i + 1 - first));
    __syncwarp();
  }
  const RowEnd end = softmax.end(g.sinks != nullptr ? g.sinks + row.head : nullptr);
  store_row(out + row.index * g.Dv, sum, g.Dv, end.factor);
  if (lane == 0) lse[statistic_index(g, i, row.head)] = end.lse;
}

template <class T>
struct BackwardArgs {
  const T *q, *k, *v, *dout;
  const float *lse, *delta;
  T *dq, *dk, *dv;
};

template <class T>
__global__ void __launch_bounds__(kThreads) backward_query_kernel(AttentionGeometry g, BackwardArgs<T> args) {
  extern __shared__ float shared[];
  float* q_row = shared + warp_of() * (2 * g.Dk + g.Dv + kWarp);
  float* dq_row = q_row + g.Dk;
  float* dout_row = dq_row + g.Dk;
  float* weights = dout_row + g.Dv;
  const Row row = row_of_warp(g, g.H);
  if (!row.exists) return;
  const int i = row.token, kv_head = row.head / (g.H / g.G);
  load_row(q_row, head_row(args.q, i, g.q_stride, row.head, g.Dk), g.Dk);
  load_row(dout_row, args.dout + row.index * g.Dv, g.Dv);
  zero_row(dq_row, g.Dk);
  const float lse = args.lse[statistic_index(g, i, row.head)], delta = args.delta[statistic_index(g, i, row.head)];
  __syncwarp();

  for (int first = g.spans[i].x; first <= i; first += kWarp) {
    const int j = first + lane_of();
    float dscore = 0.0F;
    if (j <= i) {
      const float p = expf(g.scale * dot(q_row, head_row(args.k, j, g.k_stride, kv_head, g.Dk), g.Dk) - lse);
      dscore = p * (dot(dout_row, head_row(args.v, j, g.v_stride, kv_head, g.Dv), g.Dv) - delta);
    }
    weights[lane_of()] = dscore;
    __syncwarp();
    add_rows(dq_row, g.Dk, 1.0F, weights, head_row(args.k, first, g.k_stride, kv_head, g.Dk), g.k_stride,
             min(kWarp, i + 1 - first));
    __syncwarp();
  }
  store_row(head_row(args.dq, i, g.dq_stride, row.head, g.Dk), dq_row, g.Dk, g.scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads) backward_key_kernel(AttentionGeometry g, BackwardArgs<T> args) {
  extern __shared__ float shared[];
  float* k_row = shared + warp_of() * 2 * (g.Dk + g.Dv + kWarp);
  float* dk_row = k_row + g.Dk;
  float* v_row = dk_row + g.Dk;
  float* dv_row = v_row + g.Dv;
  float* weights = dv_row + g.Dv;  // p
  float* dscores = weights + kWarp;
  const Row row = row_of_warp(g, g.G);
  if (!row.exists) return;
  const int j = row.token, end = g.spans[j].y, group_size = g.H / g.G, lane = lane_of();
  const int64_t out_stride = static_cast<int64_t>(g.H) * g.Dv;
  load_row(k_row, head_row(args.k, j, g.k_stride, row.head, g.Dk), g.Dk);
  load_row(v_row, head_row(args.v, j, g.v_stride, row.head, g.Dv), g.Dv);
  zero_row(dk_row, g.Dk);
  zero_row(dv_row, g.Dv);
  __syncwarp();

  for (int head = row.head * group_size; head < (row.head + 1) * group_size; ++head) {
    for (int first = j; first < end; first += kWarp) {
      const int i = first + lane;
      float p = 0.0F, dscore = 0.0F;
      if (i < end) {
        const int64_t statistic = statistic_index(g, i, head);
        p = expf(g.scale * dot(k_row, head_row(args.q, i, g.q_stride, head, g.Dk), g.Dk) - args.lse[statistic]);
        dscore = p * (dot(v_row, head_row(args.dout, i, out_stride, head, g.Dv), g.Dv) - args.delta[statistic]);
      }
      weights[lane] = p;
      dscores[lane] = dscore;
      __syncwarp();
      const int count = min(kWarp, end - first);
      add_rows(dk_row, g.Dk, 1.0F, dscores, head_row(args.q, first, g.q_stride, head, g.Dk), g.q_stride, count);
      add_rows(dv_row, g.Dv, 1.0F, weights, head_row(args.dout, first, out_stride, head, g.Dv), out_stride, count);
      __syncwarp();
    }
  }
  store_row(head_row(args.dk, j, g.dk_stride, row.head, g.Dk), dk_row, g.Dk, g.scale);
  store_row(head_row(args.dv, j, g.dv_stride, row.head, g.Dv), dv_row, g.Dv, 1.0F);
}

unsigned blocks_for(const AttentionGeometry& g, int num_heads) {
  const int64_t blocks = (static_cast<int64_t>(g.T) * num_heads + kWarps - 1) / kWarps;
  NMOE_CHECK(blocks <= INT32_MAX, "attention over {} tokens of {} heads", g.T, num_heads);
  return static_cast<unsigned>(blocks);
}

// `floats` a warp.
size_t shared_bytes(const AttentionGeometry& g, int64_t floats) {
  const int64_t bytes = kWarps * floats * static_cast<int64_t>(sizeof(float));
  NMOE_CHECK(bytes <= kDefaultSharedBytes,
             "attention with heads of {} and {} wants {} bytes of shared memory, a block has {}", g.Dk, g.Dv, bytes,
             kDefaultSharedBytes);
  return static_cast<size_t>(bytes);
}

template <class T>
T* pointer(const Tensor& x) {
  return x.rows_data<T>();
}

template <class T>
void forward(const AttentionGeometry& g, const AttentionForward& args, cudaStream_t stream) {
  forward_kernel<T><<<blocks_for(g, g.H), kThreads, shared_bytes(g, g.Dk + g.Dv + kWarp), stream>>>(
      g, pointer<T>(args.q), pointer<T>(args.k), pointer<T>(args.v), pointer<T>(args.out), args.lse.data<float>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void backward(const AttentionGeometry& g, const AttentionBackward& args, const float* delta, cudaStream_t stream) {
  const BackwardArgs<T> pointers = {pointer<T>(args.q),    pointer<T>(args.k),     pointer<T>(args.v),
                                    pointer<T>(args.dout), args.lse.data<float>(), delta,
                                    pointer<T>(args.dq),   pointer<T>(args.dk),    pointer<T>(args.dv)};
  backward_query_kernel<T>
      <<<blocks_for(g, g.H), kThreads, shared_bytes(g, 2 * g.Dk + g.Dv + kWarp), stream>>>(g, pointers);
  NMOE_CUDA_CHECK(cudaGetLastError());
  backward_key_kernel<T>
      <<<blocks_for(g, g.G), kThreads, shared_bytes(g, 2 * (g.Dk + g.Dv + kWarp)), stream>>>(g, pointers);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void plain_attention_forward(const AttentionGeometry& g, const AttentionForward& args, cudaStream_t stream) {
  if (args.q.dtype() == DType::kF32) {
    forward<float>(g, args, stream);
  } else {
    forward<__nv_bfloat16>(g, args, stream);
  }
}

void plain_attention_backward(const AttentionGeometry& g, const AttentionBackward& args, const float* delta,
                              cudaStream_t stream) {
  if (args.q.dtype() == DType::kF32) {
    backward<float>(g, args, delta, stream);
  } else {
    backward<__nv_bfloat16>(g, args, delta, stream);
  }
}

}  // namespace nmoe::cuda
