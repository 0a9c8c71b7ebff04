#include <cstdint>

#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// Rows are numbered in I32.
void check_plan(const MoePlan& plan) {
  NMOE_CHECK(plan.row_of.dtype() == DType::kI32 && plan.row_of.shape().rank() == 2 &&
                 plan.row_of.num_elements() <= INT32_MAX && plan.first_row >= 0 &&
                 (plan.first_row == 0 || plan.offsets.defined()),
             "a plan of rows {} {} from {} on, offsets {}", dtype_name(plan.row_of.dtype()), plan.row_of.shape(),
             plan.first_row, plan.offsets.shape());
}

void check_rows(const MoePlan& plan, const Tensor& tokens, const Tensor& rows) {
  check_plan(plan);
  NMOE_CHECK(tokens.shape().rank() == 2 && is_act(rows.dtype()) && tokens.dtype() == rows.dtype() &&
                 tokens.dim(0) == plan.row_of.dim(0) && rows.shape() == Shape({rows.dim(0), tokens.dim(1)}) &&
                 rows.dim(0) <= INT32_MAX,
             "tokens {} {} and rows {} {} by a plan of {}", dtype_name(tokens.dtype()), tokens.shape(),
             dtype_name(rows.dtype()), rows.shape(), plan.row_of.shape());
}

void check_weights(const MoePlan& plan, const Tensor& weights, const Tensor& row_weight) {
  check_plan(plan);
  NMOE_CHECK(is_stat(weights.dtype()) && weights.shape() == plan.row_of.shape() &&
                 row_weight.dtype() == weights.dtype() && row_weight.shape().rank() == 1,
             "weights {} {} and {} {} of rows by a plan of {}", dtype_name(weights.dtype()), weights.shape(),
             dtype_name(row_weight.dtype()), row_weight.shape(), plan.row_of.shape());
}

}  // namespace

void check(const BuildMoePlan& args) {
  const MoePlan& plan = args.plan;
  check_plan(plan);
  const int64_t num_experts = plan.offsets.dim(0) - 1;
  NMOE_CHECK(num_experts >= 1 && is(plan.offsets, DType::kI32, {num_experts + 1}) &&
                 is(args.top_idx, DType::kI32, plan.row_of.shape()) &&
                 (!args.counts.defined() || is(args.counts, DType::kI32, {num_experts})),
             "plan of {} choices over {} experts: offsets {}, row_of {}, counts {}", args.top_idx.shape(), num_experts,
             plan.offsets.shape(), plan.row_of.shape(), args.counts.shape());
  NMOE_CHECK(!args.part_sizes.defined() ||
                 (args.part_sizes.dtype() == DType::kI32 && args.top_idx.dim(0) % args.part_sizes.dim(0) == 0),
             "{} tokens in {} parts", args.top_idx.dim(0), args.part_sizes.shape());
}

void check(const DivideMoeRows& args) {
  NMOE_CHECK(args.offsets.dtype() == DType::kI32 && args.parts.dtype() == DType::kI32 &&
                 args.parts.dim(1) == args.offsets.dim(0) && args.capacity >= 0 && args.chunk >= 0 &&
                 (args.chunk > 0 || args.parts.dim(0) <= 1),
             "rows by offsets {} in parts {} of {} and {} rows", args.offsets.shape(), args.parts.shape(),
             args.capacity, args.chunk);
}

void check(const MoeDispatch& args) {
  NMOE_CHECK(args.x.defined() != args.codes.defined(), "dispatch of tokens {} and of codes {}", args.x.shape(),
             args.codes.values.shape());
  if (args.x.defined()) {
    NMOE_CHECK(!args.row_codes.defined(), "codes of rows {} of tokens that have none", args.rows.shape());
    return check_rows(args.plan, args.x, args.rows);
  }
  check_plan(args.plan);
  NMOE_CHECK(args.rows.shape().rank() == 2 && is_act(args.rows.dtype()) && args.rows.dim(0) <= INT32_MAX,
             "dispatch of codes to rows {} {}", dtype_name(args.rows.dtype()), args.rows.shape());
  check_codes(args.codes, {args.plan.row_of.dim(0), args.rows.dim(1)});
  check_codes(args.row_codes, args.rows.shape());
}

void check(const MoeCombine& args) { check_rows(args.plan, args.y, args.rows); }

void check(const MoeDispatchWeights& args) { check_weights(args.plan, args.weights, args.row_weight); }

void check(const MoeCombineWeights& args) { check_weights(args.plan, args.weights, args.row_weight); }

}  // namespace nmoe
