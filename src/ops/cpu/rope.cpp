#include "ops/cpu/operations.h"

namespace nmoe::cpu {
namespace {

// Multiplies pair i by the matrix (c, -s; s, c) with c = cos[i], s = direction * sin[i]. With
// YaRN's magnitude in the tables the matrix is not a pure rotation, and its backward is the transpose:
// direction -1.
template <class Real>
void rotate_head(Real* x, const Real* cos, const Real* sin, Real direction, int64_t num_pairs, RopeLayout layout) {
  if (layout == RopeLayout::kInterleaved) {
#pragma omp simd
    for (int64_t i = 0; i < num_pairs; ++i) {
      const Real a = x[2 * i], b = x[2 * i + 1], c = cos[i], s = direction * sin[i];
      x[2 * i] = a * c - b * s;
      x[2 * i + 1] = a * s + b * c;
    }
  } else {
    Real* upper = x + num_pairs;
#pragma omp simd
    for (int64_t i = 0; i < num_pairs; ++i) {
      const Real a = x[i], b = upper[i], c = cos[i], s = direction * sin[i];
      x[i] = a * c - b * s;
      upper[i] = a * s + b * c;
    }
  }
}

template <class Real>
void rotate(Context& ctx, const Rope& args, Real direction) {
  const int64_t num_tokens = args.x.dim(0), num_heads = args.x.dim(1), head_size = args.x.dim(2);
  const int64_t num_positions = args.cos.dim(0), num_pairs = args.cos.dim(1);
  if (ctx.counting()) return;
  Real* first = args.x.rows_data<Real>() + args.rope_offset;
  const int64_t stride = args.x.stride();
  const int32_t* positions = args.positions.data<int32_t>();
  const Real* cos = args.cos.data<Real>();
  const Real* sin = args.sin.data<Real>();
  parallel_blocks(ctx, num_tokens, task_rows(num_heads * head_size), [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t position = positions[token];
      NMOE_CHECK(position >= 0 && position < num_positions, "token {} at position {}, the rope tables have {}", token,
                 position, num_positions);
      for (int64_t head = 0; head < num_heads; ++head) {
        rotate_head(first + token * stride + head * head_size, cos + position * num_pairs, sin + position * num_pairs,
                    direction, num_pairs, args.layout);
      }
    }
  });
}

}  // namespace

template <class Real>
void rope_forward(Context& ctx, const Rope& args) {
  rotate(ctx, args, Real{1});
}

template <class Real>
void rope_backward(Context& ctx, const Rope& args) {
  rotate(ctx, args, Real{-1});
}

NMOE_CPU_INSTANTIATE(rope_forward, Rope)
NMOE_CPU_INSTANTIATE(rope_backward, Rope)

}  // namespace nmoe::cpu
