// Products whose operands are rounded: which kernels there are for which formats, and what is made ahead of them.
#pragma once

#include <cstdint>

#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

constexpr WeightRounding weight_rounding(const KernelSet& kernels, DType compute, OperandFormat format) {
  if (compute != DType::kBF16) return WeightRounding::kNone;
  if (kernels.has_sm100()) {
    return format == OperandFormat::kMxFp8 || format == OperandFormat::kNvFp4 ? WeightRounding::kInside
                                                                              : WeightRounding::kNone;
  }
  if (!kernels.has_sm90()) return WeightRounding::kNone;
  if (format == OperandFormat::kFp8) return WeightRounding::kCodes;
  return format == OperandFormat::kAct ? WeightRounding::kNone : WeightRounding::kInside;
}

// That there are kernels for a product's format. Codes of weights are for products with weights; gradients of experts'
// round rows themselves.
template <class Arguments>
void check_rounds(const KernelSet& kernels, const Arguments& args) {
  const OperandRounding& rounding = args.rounding;
  if (rounding.format == OperandFormat::kAct) return;
  constexpr bool is_of_weight = requires { args.dw; }
  , is_grouped = requires { args.offsets; };
  const auto compute = [&] {
    if constexpr (!is_of_weight) {
      return args.w.dtype();
    } else if constexpr (is_grouped) {
      return args.either().source.dtype();
    } else {
      return args.dy.dtype();
    }
  }();
  const WeightRounding rounds = weight_rounding(kernels, compute, rounding.format);
  NMOE_CHECK(rounds == WeightRounding::kInside ||
                 (rounds == WeightRounding::kCodes && ((is_of_weight && is_grouped) || rounding.weight.defined())),
             "CUDA does not round the operands of this product");
}

// Whether batch-invariant products, which take no scratch, can do it: they round nothing, and leave values alone.
template <class Arguments>
void check_batch_invariant(const Arguments& args) {
  NMOE_CHECK(args.rounding.format == OperandFormat::kAct, "batch-invariant products do not round operands");
  if constexpr (requires { args.pre_codes; }) {
    NMOE_CHECK(!args.pre_codes.defined() && !args.h_codes.defined(), "batch-invariant products leave no codes");
  }
}

// Where it is emulated: the same product, with room for operands as they are after rounding
// (kernels/low_precision/emulated_operands.h). Blackwell multiplies blocks (plans/block_operands.h).
inline bool has_short_blocks(const OperandRounding& rounding) {
  return rounding.format == OperandFormat::kMxFp8 || rounding.format == OperandFormat::kNvFp4;
}
inline bool is_emulated(const KernelSet& kernels, const OperandRounding& rounding) {
  return !kernels.has_sm100() && has_short_blocks(rounding);
}
inline bool multiplies_blocks(const KernelSet& kernels, const OperandRounding& rounding) {
  return kernels.has_sm100() && has_short_blocks(rounding);
}
template <class Arguments>
Tensor offsets_of(const Arguments& args) {
  if constexpr (requires { args.offsets; }) {
    return args.offsets;
  } else {
    return {};
  }
}
template <class Arguments>
struct Widened {
  Arguments args;
  Tensor amax, other_amax;  // NVFP4: [G] F32 of rows and weights, or of x and dy; of dense products [1]
};
inline Tensor claim_like(ArenaScope& scope, const Tensor& x) { return scope.allocate(x.dtype(), x.shape()); }
// Rows where they lie, each rounded once however often it is picked; or in order: a row's random bits are those of its
// place there, and a tensor's largest magnitude is that of rows that are there.
inline Tensor claim_rows(ArenaScope& scope, OperandFormat, const Tensor& x) { return claim_like(scope, x); }
inline OperandRows claim_rows(ArenaScope& scope, OperandFormat format, const OperandRows& x) {
  if (format == OperandFormat::kMxFp8) return {claim_like(scope, x.source), x.index};
  return scope.allocate(x.source.dtype(), {x.num_rows(), x.width()});
}
// Rows in order, with room for whole blocks of each of `groups` in NVFP4.
inline Tensor claim_columns(ArenaScope& scope, OperandFormat format, const OperandRows& x, int64_t groups) {
  const int64_t n = format == OperandFormat::kNvFp4 ? block_size(format) : 1, rows = x.num_rows();
  const int64_t room = groups == 1 ? blocks_for(rows, n) * n : rows + groups * (n - 1);
  return scope.allocate(x.source.dtype(), {room, x.width()});
}
template <class Arguments>
Widened<Arguments> claim_widened(ArenaScope& scope, const Arguments& args) {
  constexpr bool is_grouped = requires { args.offsets; }
  , is_of_weight = requires { args.dw; };
  const OperandFormat format = args.rounding.format;
  const int64_t groups = is_grouped ? offsets_of(args).dim(0) - 1 : 1;
  Widened<Arguments> to{.args = args, .amax = {}, .other_amax = {}};
  if constexpr (is_of_weight) {
    to.args.x = claim_columns(scope, format, args.x, groups);
    to.args.dy = claim_columns(scope, format, args.dy, groups);
  } else {
    if constexpr (requires { args.x; }) {
      to.args.x = claim_rows(scope, format, args.x);
    } else {
      to.args.dy = claim_rows(scope, format, args.dy);
    }
    to.args.w = claim_like(scope, args.w);
  }
  to.args.rounding = {};
  if (format != OperandFormat::kNvFp4) return to;
  to.amax = scope.allocate(DType::kF32, {groups});
  to.other_amax = scope.allocate(DType::kF32, {groups});
  to.args.rounding.product_scale = scope.allocate(DType::kF32, {is_grouped ? groups : 2});
  if constexpr (is_grouped && is_of_weight) to.args.offsets = claim_like(scope, args.offsets);
  return to;
}

// Of FP8 operands: codes of the rows that came without, or are picked.
inline RowCodes claim_row_codes(ArenaScope& scope, const OperandRounding& rounding, const OperandRows& rows) {
  if (rounding.format != OperandFormat::kFp8 || (rounding.rows.defined() && !rows.index.defined())) return {};
  RowCodes codes;
  codes.values = scope.allocate(DType::kU8, {rows.num_rows(), rows.width()});
  codes.scales =
      scope.allocate(DType::kU8, {rows.num_rows(), blocks_for(rows.width(), block_size(OperandFormat::kFp8))});
  return codes;
}

}  // namespace nmoe::cuda
