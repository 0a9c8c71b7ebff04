// Operands in formats that tensor cores have not: rounded, and widened to BF16, which holds what they were rounded to.
// Products of those differ from tensor cores with the format in the order and width of sums alone.
#pragma once

#include "ops/cuda/kernels/low_precision/mxfp8.h"
#include "ops/cuda/kernels/low_precision/nvfp4.h"
#include "ops/cuda/plans/rounding.h"

namespace nmoe::cuda {

inline Tensor values_of(const OperandRows& rows) { return rows.source; }

template <class Arguments>
void widen_mxfp8(Context& ctx, const Arguments& args, const Arguments& widened) {
  if constexpr (requires { args.dw; }) {
    mxfp8_columns(ctx, args.x, offsets_of(args), values_of(widened.x));
    mxfp8_columns(ctx, args.dy, offsets_of(args), values_of(widened.dy));
  } else if constexpr (requires { args.x; }) {
    mxfp8_rows(ctx, values_of(args.x), values_of(widened.x));
    mxfp8_rows(ctx, args.w, widened.w);
  } else {
    mxfp8_rows(ctx, values_of(args.dy), values_of(widened.dy));
    mxfp8_outputs(ctx, args.w, widened.w);
  }
}

template <class Arguments>
void widen_nvfp4(Context& ctx, const Arguments& args, const Widened<Arguments>& to) {
  const Arguments& widened = to.args;
  const RandomRounding& random = args.rounding.random;
  const Tensor offsets = offsets_of(args);
  if constexpr (requires { args.dw; }) {
    const bool transform = args.rounding.transform;
    nvfp4_columns(ctx, args.x, offsets, transform, {}, values_of(widened.x), to.amax);
    nvfp4_columns(ctx, args.dy, offsets, transform, random, values_of(widened.dy), to.other_amax);
    if constexpr (requires { args.offsets; }) nvfp4_column_offsets(ctx, offsets, widened.offsets);
  } else {
    if constexpr (requires { args.x; }) {
      nvfp4_rows(ctx, args.x, offsets, random, values_of(widened.x), to.amax);
    } else {
      nvfp4_rows(ctx, args.dy, offsets, random, values_of(widened.dy), to.amax);
    }
    nvfp4_weights(ctx, args.w, widened.w, to.other_amax);
  }
  const Tensor scale = widened.rounding.product_scale;
  if constexpr (requires { args.offsets; }) {
    nvfp4_expert_scales(ctx, to.amax, to.other_amax, scale);
  } else if constexpr (requires { args.addend; }) {
    nvfp4_dense_scale(ctx, to.amax, to.other_amax, args.addend.defined(), scale);
  } else if constexpr (requires { args.accumulate; }) {
    nvfp4_dense_scale(ctx, to.amax, to.other_amax, args.accumulate, scale);
  } else {
    nvfp4_dense_scale(ctx, to.amax, to.other_amax, /*adds=*/false, scale);
  }
}

// `widened`: of claim_widened.
template <class Arguments>
void widen(Context& ctx, const Arguments& args, const Widened<Arguments>& widened) {
  if (args.rounding.format == OperandFormat::kMxFp8) return widen_mxfp8(ctx, args, widened.args);
  widen_nvfp4(ctx, args, widened);
}

}  // namespace nmoe::cuda
