// The SSD scan in generation. A block has one head of a slot's rows and goes from chunk to chunk: rows of a pass lie in
// the tensors of that, those before them in the slot's open chunk, which gets the pass's own last of all. Fused
// multiply-adds, each sum one chain, ascending; values are rounded where operands of products are in training (ssd.cu),
// so that F32 has its bits.
#include "ops/cuda/kernels/recurrent/slot_rows.h"
#include "ops/cuda/kernels/recurrent/ssd_chunks.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace ssd {
namespace {

constexpr int kStripRows = 8;  // that a block has at a time

template <class T>
struct CachedScan {
  const T *x, *b, *c, *dt;
  int64_t x_stride, b_stride, c_stride, dt_stride;
  const float *dt_bias, *a_log, *d;
  const int32_t *slots, *positions, *begins, *order;
  float* states;
  T *open_x, *open_b;
  float* open_step;
  T* y;
  int num_slots, H, P, G, N, Q;
  bool vector;  // rows of b and of states, 16 bytes at a time

  __device__ float step(int row, int head) const {
    return softplus(to_float(dt[row * dt_stride + head]) + dt_bias[head]);
  }
};

// A chunk as far as it is there: places below `begin` are in the slot, and place i of the others is row rows[i -
// begin].
template <class T>
struct OpenChunk {
  const CachedScan<T>& in;
  int slot, head, begin, end;
  bool continues;
  const int32_t* rows;

  __device__ const T* x(int i) const {
    if (i >= begin) return in.x + rows[i - begin] * in.x_stride + static_cast<int64_t>(head) * in.P;
    return in.open_x + ((static_cast<int64_t>(slot) * in.Q + i) * in.H + head) * in.P;
  }
  __device__ const T* b(int i) const {
    const int group = head / (in.H / in.G);
    if (i >= begin) return in.b + rows[i - begin] * in.b_stride + static_cast<int64_t>(group) * in.N;
    return in.open_b + ((static_cast<int64_t>(slot) * in.Q + i) * in.G + group) * in.N;
  }
  __device__ float step(int i) const {
    if (i >= begin) return in.step(rows[i - begin], head);
    return in.open_step[(static_cast<int64_t>(slot) * in.Q + i) * in.H + head];
  }
  __device__ float* state() const { return in.states + (static_cast<int64_t>(slot) * in.H + head) * in.P * in.N; }
};

// A block's shared memory; rows are padded by a value, since lanes that lie beside each other have different rows.
// Beside it is c, [kStripRows, N + 1].
struct Room {
  float step[kMostSsdChunk], sum[kMostSsdChunk];
  float mix[kStripRows][kMostSsdChunk + 1];
  int end;
};

template <class T>
__device__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

// sum + the sum of a[n] b[n], with b rounded to T.
template <class T, class Value>
__device__ float add_product(const float* a, const Value* b, int size, bool vector, float sum) {
#pragma unroll 2
  for (int n = 0; n < size; n += 8) {
    float v[8];
    load8(b, n, size, vector, v);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (n + k < size) sum = fmaf(a[n + k], rounded<T>(v[k]), sum);
    }
  }
  return sum;
}

// y of places [first, first + count).
template <class T>
__device__ void strip(const OpenChunk<T>& of, int first, int count, Room& room, float* c) {
  const CachedScan<T>& in = of.in;
  const int group = of.head / (in.H / in.G), seen = first + count, thread = static_cast<int>(threadIdx.x);
  const int c_stride = in.N + 1;
  __syncthreads();
  for (int i = thread; i < count * in.N; i += kThreads) {
    const int r = i / in.N, n = i % in.N;
    c[r * c_stride + n] =
        to_float(in.c[of.rows[first + r - of.begin] * in.c_stride + static_cast<int64_t>(group) * in.N + n]);
  }
  __syncthreads();
  for (int i = thread; i < count * seen; i += kThreads) {
    const int r = i % count, j = i / count;  // lanes share what they read
    if (j > first + r) continue;
    const float score = add_product<T>(c + r * c_stride, of.b(j), in.N, in.vector, 0.0F);
    room.mix[r][j] = rounded<T>(score * decay(room.sum[first + r] - room.sum[j]) * room.step[j]);
  }
  __syncthreads();
  for (int i = thread; i < count * in.N; i += kThreads) {
    float& value = c[i / in.N * c_stride + i % in.N];
    value = rounded<T>(decay(room.sum[first + i / in.N]) * value);
  }
  __syncthreads();
  for (int i = thread; i < count * in.P; i += kThreads) {
    const int r = i % count, p = i / count, place = first + r;
    float y = 0.0F;
#pragma unroll 4
    for (int j = 0; j <= place; ++j) y = fmaf(room.mix[r][j], to_float(of.x(j)[p]), y);
    if (of.continues) {
      y = add_product<T>(c + r * c_stride, of.state() + static_cast<int64_t>(p) * in.N, in.N, in.vector, y);
    }
    y = fmaf(in.d[of.head], to_float(of.x(place)[p]), y);
    in.y[(static_cast<int64_t>(of.rows[place - of.begin]) * in.H + of.head) * in.P + p] = from_float<T>(y);
  }
}

// The state behind a whole chunk.
template <class T>
__device__ void advance(const OpenChunk<T>& of, Room& room) {
  const CachedScan<T>& in = of.in;
  const float last = room.sum[in.Q - 1], faded = decay(last);
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < in.Q; j += kThreads) {
    room.mix[0][j] = decay(last - room.sum[j]) * room.step[j];
  }
  __syncthreads();
  constexpr int kValues = 4;  // of the head, a thread
  float* const state = of.state();
  for (int i = static_cast<int>(threadIdx.x); i < ceil_div(in.P, kValues) * in.N; i += kThreads) {
    const int p = i / in.N * kValues, n = i % in.N, count = min(kValues, in.P - p);
    float* const own = state + static_cast<int64_t>(p) * in.N + n;
    float values[kValues] = {};
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      if (of.continues && k < count) values[k] = faded * own[static_cast<int64_t>(k) * in.N];
    }
#pragma unroll 2
    for (int j = 0; j < in.Q; ++j) {
      const T* const x = of.x(j) + p;
      const float b = to_float(of.b(j)[n]), weight = room.mix[0][j];
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        if (k < count) values[k] = fmaf(rounded<T>(weight * to_float(x[k])), b, values[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      if (k < count) own[static_cast<int64_t>(k) * in.N] = values[k];
    }
  }
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kThreads) rows_kernel(CachedScan<T> in) {
  extern __shared__ float c[];
  __shared__ Room room;
  const int slot = static_cast<int>(blockIdx.y) - 1, head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), end = in.begins[slot + 2];
  for (int at = in.begins[slot + 1]; at < end;) {
    const int32_t* const rows = in.order + at;
    if (slot < 0) {
      for (int p = thread; p < in.P; p += kThreads) {
        in.y[(static_cast<int64_t>(*rows) * in.H + head) * in.P + p] = from_float<T>(0.0F);
      }
      ++at;
      continue;
    }
    const int position = in.positions[*rows], begin = position % in.Q;
    __syncthreads();
    if (thread == 0) room.end = in.Q;
    __syncthreads();
    for (int i = 1 + thread; begin + i < in.Q; i += kThreads) {
      if (at + i >= end || in.positions[rows[i]] != position + i) atomicMin(&room.end, begin + i);
    }
    __syncthreads();
    const OpenChunk<T> of{in, slot, head, begin, room.end, position >= in.Q, rows};
    for (int i = thread; i < of.end; i += kThreads) room.step[i] = of.step(i);
    __syncthreads();
    if (thread == 0) {
      const float a = -expf(in.a_log[head]);
      float sum = 0.0F;
#pragma unroll 8
      for (int i = 0; i < of.end; ++i) room.sum[i] = sum = fmaf(room.step[i], a, sum);
    }
    __syncthreads();
    for (int i = begin; i < of.end; i += kStripRows) strip(of, i, min(kStripRows, of.end - i), room, c);
    if (of.end == in.Q) advance(of, room);
    at += of.end - begin;
  }
}

// A slot's last Q rows are put where its open chunk has them.
template <class T>
__global__ void __launch_bounds__(kThreads) keep_kernel(CachedScan<T> in) {
  const int row = static_cast<int>(blockIdx.x), slot = in.slots[row];
  if (slot < 0 || slot >= in.num_slots) return;
  const int position = in.positions[row], last = in.positions[in.order[in.begins[slot + 2] - 1]];
  if (position + in.Q <= last) return;
  const int64_t place = static_cast<int64_t>(slot) * in.Q + position % in.Q;
  const int width = in.H * in.P, width_b = in.G * in.N;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    in.open_x[place * width + i] = in.x[row * in.x_stride + i];
  }
  for (int i = static_cast<int>(threadIdx.x); i < width_b; i += kThreads) {
    in.open_b[place * width_b + i] = in.b[row * in.b_stride + i];
  }
  for (int head = static_cast<int>(threadIdx.x); head < in.H; head += kThreads) {
    in.open_step[place * in.H + head] = in.step(row, head);
  }
}

}  // namespace
}  // namespace ssd

void cached_ssd(Context& ctx, const CachedSsd& args, const CachedSsdPlan& plan) {
  using namespace ssd;
  const SsdSizes sizes = ssd_sizes(args);
  const int64_t num_slots = args.states.dim(0);
  if (sizes.tokens == 0 || sizes.heads == 0 || sizes.head_dim == 0) return;
  order_by_slots(ctx, args.slots, num_slots, plan.rows);
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    const CachedScan<T> scan{.x = args.x.rows_data<T>(),
                             .b = args.b.rows_data<T>(),
                             .c = args.c.rows_data<T>(),
                             .dt = args.dt.rows_data<T>(),
                             .x_stride = args.x.stride(),
                             .b_stride = args.b.stride(),
                             .c_stride = args.c.stride(),
                             .dt_stride = args.dt.stride(),
                             .dt_bias = args.dt_bias.data<float>(),
                             .a_log = args.a_log.data<float>(),
                             .d = args.d.data<float>(),
                             .slots = args.slots.data<int32_t>(),
                             .positions = args.positions.data<int32_t>(),
                             .begins = plan.rows.begins.data<int32_t>(),
                             .order = plan.rows.order.data<int32_t>(),
                             .states = args.states.data<float>(),
                             .open_x = args.open_x.data<T>(),
                             .open_b = args.open_b.data<T>(),
                             .open_step = args.open_step.data<float>(),
                             .y = args.y.data<T>(),
                             .num_slots = static_cast<int>(num_slots),
                             .H = static_cast<int>(sizes.heads),
                             .P = static_cast<int>(sizes.head_dim),
                             .G = static_cast<int>(sizes.groups),
                             .N = static_cast<int>(sizes.state),
                             .Q = static_cast<int>(sizes.chunk),
                             .vector = can_vectorise(sizes.state, args.b, args.states, args.open_b)};
    const int shared_bytes = kStripRows * (scan.N + 1) * static_cast<int>(sizeof(float));
    allow_dynamic_shared(rows_kernel<T>, shared_bytes);
    rows_kernel<T><<<dim3(grid_size(sizes.heads), short_grid_size(num_slots + 1)), kThreads,
                     static_cast<size_t>(shared_bytes), ctx.stream>>>(scan);
    keep_kernel<T><<<grid_size(sizes.tokens), kThreads, 0, ctx.stream>>>(scan);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
