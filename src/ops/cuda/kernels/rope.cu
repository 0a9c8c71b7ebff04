// Rotates pairs of values in place; memory-bound. Pair i is multiplied by the matrix (c, -s; s, c) with c = cos[i],
// s = direction * sin[i]. With YaRN's magnitude in the tables the matrix is no pure rotation, and its backward is the
// transpose: direction -1.
//
// A thread takes 8 pairs of a head.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* x, const int32_t* positions, const float* cos_table, const float* sin_table, float direction,
                unsigned num_heads, unsigned chunks, unsigned num_tasks, int64_t stride, int64_t head_size,
                int64_t rope_offset, int64_t num_pairs, int64_t num_positions, RopeLayout layout, bool vector) {
  begin_behind_work_before();
  const unsigned task = blockIdx.x * kThreads + threadIdx.x;
  if (task >= num_tasks) return;
  const unsigned token = task / chunks / num_heads, head = task / chunks % num_heads;
  const int64_t position = positions[token];
  const bool known = position >= 0 && position < num_positions;
  T* rotated = x + token * stride + head * head_size + rope_offset;
  const int64_t pair = static_cast<int64_t>(task % chunks) * 8;
  float c[8], s[8], first[8], second[8];
  if (known) {
    load8(cos_table + position * num_pairs, pair, num_pairs, vector, c);
    load8(sin_table + position * num_pairs, pair, num_pairs, vector, s);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) c[j] = s[j] = __int_as_float(0x7FC00000);
  }
  const bool interleaved = layout == RopeLayout::kInterleaved;
  if (interleaved) {  // 16 values, a pair side by side
    float low[8], high[8];
    load8(rotated, 2 * pair, 2 * num_pairs, vector, low);
    load8(rotated, 2 * pair + 8, 2 * num_pairs, vector, high);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first[j] = low[2 * j], second[j] = low[2 * j + 1];
      first[j + 4] = high[2 * j], second[j + 4] = high[2 * j + 1];
    }
  } else {
    load8(rotated, pair, num_pairs, vector, first);
    load8(rotated + num_pairs, pair, num_pairs, vector, second);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float a = first[j], b = second[j], sine = direction * s[j];
    first[j] = a * c[j] - b * sine;
    second[j] = a * sine + b * c[j];
  }
  if (interleaved) {
    float low[8], high[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      low[2 * j] = first[j], low[2 * j + 1] = second[j];
      high[2 * j] = first[j + 4], high[2 * j + 1] = second[j + 4];
    }
    store8(rotated, 2 * pair, 2 * num_pairs, vector, low);
    store8(rotated, 2 * pair + 8, 2 * num_pairs, vector, high);
  } else {
    store8(rotated, pair, num_pairs, vector, first);
    store8(rotated + num_pairs, pair, num_pairs, vector, second);
  }
}

void rotate(Context& ctx, const Rope& args, float direction) {
  const int64_t num_tokens = args.x.dim(0), num_heads = args.x.dim(1), head_size = args.x.dim(2);
  const int64_t num_positions = args.cos.dim(0), num_pairs = args.cos.dim(1);
  NMOE_CHECK(args.positions.dim(0) == num_tokens && args.sin.shape() == args.cos.shape() && args.rope_offset >= 0 &&
                 args.rope_offset + 2 * num_pairs <= head_size &&
                 num_tokens * num_heads * ceil_div(num_pairs, int64_t{8}) <= std::numeric_limits<int32_t>::max(),
             "rope of x {} at offset {}, positions {}, tables {} and {}", args.x.shape(), args.rope_offset,
             args.positions.shape(), args.cos.shape(), args.sin.shape());
  if (ctx.counting() || num_tokens == 0 || num_heads == 0 || num_pairs == 0) return;
  const int64_t chunks = ceil_div(num_pairs, int64_t{8}), num_tasks = num_tokens * num_heads * chunks;
  const bool vector =
      can_vectorise(head_size, args.x) && args.rope_offset % 8 == 0 && can_vectorise(num_pairs, args.cos, args.sin);
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    launch_early(ctx, rope_kernel<T>, grid_size(ceil_div(num_tasks, kThreads)), kThreads, 0, args.x.rows_data<T>(),
                 args.positions.data<int32_t>(), args.cos.data<float>(), args.sin.data<float>(), direction,
                 static_cast<unsigned>(num_heads), static_cast<unsigned>(chunks), static_cast<unsigned>(num_tasks),
                 args.x.stride(), head_size, args.rope_offset, num_pairs, num_positions, args.layout, vector);
  });
}

}  // namespace

void rope_forward(Context& ctx, const Rope& args) { rotate(ctx, args, 1.0F); }

void rope_backward(Context& ctx, const Rope& args) { rotate(ctx, args, -1.0F); }

}  // namespace nmoe::cuda
