// Plain loops over tensors: fill, add, reductions. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

void fill(Context& ctx, Tensor x, double value);
void fill_truncated_normal(Context& ctx, Tensor x, const TruncatedNormal& draws);
void copy(Context& ctx, Tensor source, Tensor destination);
template <class Real>
void add(Context& ctx, Tensor x, Tensor y);
template <class Real>
void sum(Context& ctx, Tensor x, Tensor out);
template <class Real>
void sum_of_squares(Context& ctx, Tensor x, Tensor out);
void clip_scale(Context& ctx, Tensor sum_squares, Tensor loss_sum, double max_norm, Tensor scale, Tensor stopped);
template <class Real>
void count_non_finite(Context& ctx, Tensor x, Tensor out);

}  // namespace nmoe::cpu
