// Rotates pairs of values in place (primitives/rotation.cuh); memory-bound. A thread takes 8 pairs of each of kHeads
// heads of a token: it reads their angles once, and has all of it on its way before it works on any.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/packed.cuh"
#include "ops/cuda/primitives/rotation.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;

// x: the rotated part of the first head. Tasks: (token, heads, 8 pairs), the last of which changes first.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* x, RotationTables tables, float direction, unsigned num_heads, unsigned head_groups, unsigned chunks,
                unsigned num_tasks, int64_t stride, int64_t head_size, bool vector) {
  begin_behind_work_before();
  const unsigned task = blockIdx.x * kThreads + threadIdx.x;
  if (task >= num_tasks) return;
  const unsigned token = task / chunks / head_groups, first_head = task / chunks % head_groups * kHeads;
  const int64_t pair = static_cast<int64_t>(task % chunks) * 8;
  const PairColumns columns(pair, tables.num_pairs, tables.layout);
  T* const heads = x + token * stride + first_head * head_size;
  Packed8<T> low[kHeads], high[kHeads];
#pragma unroll
  for (unsigned h = 0; h < kHeads; ++h) {
    if (first_head + h >= num_heads) continue;
    low[h] = fetch8(heads + h * head_size, columns.low, columns.low_end, vector);
    high[h] = fetch8(heads + h * head_size, columns.high, columns.high_end, vector);
  }
  const PairRotation rotation(tables, token, pair, direction, vector);
#pragma unroll
  for (unsigned h = 0; h < kHeads; ++h) {
    if (first_head + h >= num_heads) continue;
    float first[8], second[8];
    unpack8(low[h], first);
    unpack8(high[h], second);
    columns.to_pairs(first, second);
    rotation.apply(first, second);
    columns.to_runs(first, second);
    store8(heads + h * head_size, columns.low, columns.low_end, vector, first);
    store8(heads + h * head_size, columns.high, columns.high_end, vector, second);
  }
}

void rotate(Context& ctx, const Rope& args, float direction) {
  const int64_t num_tokens = args.x.dim(0), num_heads = args.x.dim(1), head_size = args.x.dim(2);
  const int64_t num_pairs = args.cos.dim(1);
  const int64_t chunks = ceil_div(num_pairs, int64_t{8}), head_groups = ceil_div(num_heads, int64_t{kHeads});
  const int64_t num_tasks = num_tokens * head_groups * chunks;
  NMOE_CHECK(num_tasks <= std::numeric_limits<int32_t>::max(), "rope of {}", args.x.shape());
  if (num_tasks == 0) return;
  const bool vector =
      can_vectorise(head_size, args.x) && args.rope_offset % 8 == 0 && can_vectorise(num_pairs, args.cos, args.sin);
  dispatch_act(args.x.dtype(), [&](auto element) {
    using T = decltype(element);
    launch_early(ctx, rope_kernel<T>, grid_size(ceil_div(num_tasks, kThreads)), kThreads, 0,
                 args.x.rows_data<T>() + args.rope_offset, RotationTables(args), direction,
                 static_cast<unsigned>(num_heads), static_cast<unsigned>(head_groups), static_cast<unsigned>(chunks),
                 static_cast<unsigned>(num_tasks), args.x.stride(), head_size, vector);
  });
}

}  // namespace

void rope_forward(Context& ctx, const Rope& args) { rotate(ctx, args, 1.0F); }

void rope_backward(Context& ctx, const Rope& args) { rotate(ctx, args, -1.0F); }

}  // namespace nmoe::cuda
