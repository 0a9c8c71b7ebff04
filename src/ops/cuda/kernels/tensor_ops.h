// Plain loops over tensors: fill, copy, reductions, weights and their masters. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void fill(Context& ctx, Tensor x, double value);
void fill_truncated_normal(Context& ctx, Tensor x, const TruncatedNormal& draws);
void copy(Context& ctx, Tensor source, Tensor destination);
void split_weight(Context& ctx, Tensor master, Tensor w, Tensor low);
void join_weight(Context& ctx, Tensor w, Tensor low, Tensor master);
// x is F32 or BF16 in the reductions.
void sum(Context& ctx, Tensor x, Tensor out);
void sum_of_squares(Context& ctx, Tensor x, Tensor out);
void clip_scale(Context& ctx, Tensor sum_squares, Tensor loss_sum, double max_norm, Tensor scale, Tensor stopped);
void count_non_finite(Context& ctx, Tensor x, Tensor out);

}  // namespace nmoe::cuda
