#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// Operands of a product of `rows` with weights w [out, in] or [E, out, in], and what it makes of them.
void check_rounding(const OperandRounding& rounding, const OperandRows& rows, const Tensor& w) {
  NMOE_CHECK(rounding.format == OperandFormat::kAct || !rounding.product_scale.defined(),
             "a product that is scaled, of operands that are to be rounded");
  NMOE_CHECK(rounding.format == OperandFormat::kFp8 || !(rounding.weight.defined() || rounding.rows.defined()),
             "codes are operands of products in FP8");
  if (rounding.rows.defined()) {
    check_codes(rounding.rows, rows.source.shape());
    NMOE_CHECK(!rows.index.defined() || (rows.row_of.defined() && rows.row_of.dim(0) == rows.source.dim(0)),
               "codes of {}, of which rows are picked, with row_of {}", rows.source.shape(), rows.row_of.shape());
  }
  if (!rounding.weight.defined()) return;
  const WeightCodes& codes = rounding.weight;
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  const bool is_stack = w.shape().rank() == 3;
  const int64_t E = is_stack ? w.dim(0) : 1, out = w.dim(-2), in = w.dim(-1);
  const int64_t out_blocks = (out + n - 1) / n, in_blocks = (in + n - 1) / n;
  NMOE_CHECK(
      is(codes.values, DType::kU8, {E, out, in}) && is(codes.scales, DType::kU8, {E, out_blocks, in_blocks}) &&
          (!codes.transposed_values.defined() || (is(codes.transposed_values, DType::kU8, {E, in, out}) &&
                                                  is(codes.transposed_scales, DType::kU8, {E, in_blocks, out_blocks}))),
      "codes {} with scales {}, transposed {} with {}, of weights {}", codes.values.shape(), codes.scales.shape(),
      codes.transposed_values.shape(), codes.transposed_scales.shape(), w.shape());
}

// Products are of one dtype, and leave it or statistics.
bool is_result(const Tensor& y, const Tensor& x) { return y.dtype() == x.dtype() || y.dtype() == DType::kF32; }

void check_matrices(const Tensor& rows, const Tensor& w, const Tensor& result, bool over_out) {
  NMOE_CHECK(rows.shape().rank() == 2 && w.shape().rank() == 2 && is_act(rows.dtype()) && w.dtype() == rows.dtype() &&
                 rows.dim(1) == w.dim(over_out ? 0 : 1) &&
                 result.shape() == Shape({rows.dim(0), w.dim(over_out ? 1 : 0)}) && is_result(result, rows),
             "product of {} {} and {} {}, over its {}, into {} {}", dtype_name(rows.dtype()), rows.shape(),
             dtype_name(w.dtype()), w.shape(), over_out ? "rows" : "columns", dtype_name(result.dtype()),
             result.shape());
}

// Rows by groups.
void check_groups(const OperandRows& rows, const Tensor& offsets, int64_t num_groups) {
  NMOE_CHECK(rows.source.shape().rank() == 2, "rows {} in groups", rows.source.shape());
  NMOE_CHECK(
      is(offsets, DType::kI32, {num_groups + 1}) && rows.source.shape().rank() == 2 && is_act(rows.source.dtype()) &&
          (!rows.index.defined() || is(rows.index, DType::kI32, {rows.num_rows()})),
      "{} rows of {} {} in {} groups, offsets {}, picked by {} {}", rows.num_rows(), dtype_name(rows.source.dtype()),
      rows.source.shape(), num_groups, offsets.shape(), dtype_name(rows.index.dtype()), rows.index.shape());
}
// The same of two sides, of which at most one is picked.
void check_groups(const OperandRows& rows, const OperandRows& other, const Tensor& offsets, int64_t num_groups) {
  check_groups(rows, offsets, num_groups);
  check_groups(other, offsets, num_groups);
  NMOE_CHECK(other.source.dtype() == rows.source.dtype() && other.num_rows() == rows.num_rows(),
             "{} rows of {} and {} of {}", rows.num_rows(), dtype_name(rows.source.dtype()), other.num_rows(),
             dtype_name(other.source.dtype()));
  NMOE_CHECK(!rows.index.defined() || !other.index.defined(), "a product whose rows are picked on both sides");
}

void check_experts(const OperandRows& rows, const Tensor& w, const Tensor& offsets, const Tensor& result,
                   bool over_out) {
  NMOE_CHECK(w.shape().rank() == 3, "experts' weights {}", w.shape());
  check_groups(rows, result, offsets, w.dim(0));
  NMOE_CHECK(w.dtype() == rows.source.dtype() && rows.width() == w.dim(over_out ? 1 : 2) &&
                 result.dim(1) == w.dim(over_out ? 2 : 1),
             "rows {} {} by experts' weights {} {}, over their {}, into {}", dtype_name(rows.source.dtype()),
             rows.source.shape(), dtype_name(w.dtype()), w.shape(), over_out ? "rows" : "columns", result.shape());
}

void check_bias(const ExpertBias& bias, int64_t num_experts, int64_t num_rows, int64_t width) {
  const Tensor &values = bias.values, &row_weight = bias.row_weight;
  NMOE_CHECK(is_stat(values.dtype()) && values.shape() == Shape({num_experts, width}) &&
                 (!row_weight.defined() || is(row_weight, values.dtype(), {num_rows})),
             "biases {} {} of {} experts with {} outputs, weights {} of {} rows", dtype_name(values.dtype()),
             values.shape(), num_experts, width, row_weight.shape(), num_rows);
}

}  // namespace

void check(const LinearForward& args) {
  check_matrices(args.x, args.w, args.y, /*over_out=*/false);
  check_rounding(args.rounding, args.x, args.w);
  NMOE_CHECK(!args.addend.defined() || is(args.addend, args.y.dtype(), args.y.shape()),
             "{} {} added to a product {} {}", dtype_name(args.addend.dtype()), args.addend.shape(),
             dtype_name(args.y.dtype()), args.y.shape());
}

void check(const LinearActivationForward& args) {
  check_matrices(args.x, args.w, args.pre, /*over_out=*/false);
  check_rounding(args.rounding, args.x, args.w);
  check(ActivationForward{.kind = args.kind,
                          .pre = args.pre,
                          .h = args.h,
                          .h_codes = args.h_codes,
                          .keeps_h = args.keeps_h,
                          .pre_codes = args.pre_codes});
}

void check(const LinearBackwardInput& args) {
  check_matrices(args.dy, args.w, args.dx, /*over_out=*/true);
  check_rounding(args.rounding, args.dy, args.w);
}

void check(const LinearBackwardWeight& args) {
  const Tensor &x = args.x, &dy = args.dy, &dw = args.dw;
  NMOE_CHECK(x.shape().rank() == 2 && dy.shape().rank() == 2 && x.dim(0) == dy.dim(0) && is_act(x.dtype()) &&
                 dy.dtype() == x.dtype() && is_stat(dw.dtype()) && dw.shape() == Shape({dy.dim(1), x.dim(1)}),
             "gradient {} {} of a weight by {} {} and {} {}", dtype_name(dw.dtype()), dw.shape(),
             dtype_name(dy.dtype()), dy.shape(), dtype_name(x.dtype()), x.shape());
  NMOE_CHECK(args.rounding.format == OperandFormat::kAct || !args.rounding.product_scale.defined(),
             "a product that is scaled, of operands that are to be rounded");
}

void check(const GroupedLinearForward& args) {
  check_experts(args.x, args.w, args.offsets, args.y, /*over_out=*/false);
  check_rounding(args.rounding, args.x, args.w);
  if (!args.bias.defined()) return;
  check_bias(args.bias, args.w.dim(0), args.y.dim(0), args.y.dim(1));
}

void check(const GroupedActivationForward& args) {
  NMOE_CHECK(args.pre.defined() || args.pre_codes.defined(), "pre-activations wanted neither as values nor as codes");
  const Tensor pre = pre_of(args);
  check_experts(args.x, args.w, args.offsets, pre, /*over_out=*/false);
  check_rounding(args.rounding, args.x, args.w);
  check(ActivationForward{.kind = args.kind,
                          .pre = pre,
                          .row_weight = args.row_weight,
                          .h = args.h,
                          .num_rows = {},
                          .h_codes = args.h_codes,
                          .h_columns = args.h_columns,
                          .offsets = args.offsets,
                          .keeps_h = args.keeps_h,
                          .pre_codes = args.pre_codes});
  if (!args.bias.defined()) return;
  check_bias(args.bias, args.w.dim(0), pre.dim(0), pre.dim(1));
  NMOE_CHECK(!args.bias.row_weight.defined(), "a bias with weights of rows {} in front of an activation",
             args.bias.row_weight.shape());
}

void check(const GroupedLinearBackwardInput& args) {
  NMOE_CHECK(args.dy.defined() || args.rounding.rows.defined(), "gradients neither as values nor as codes");
  const Tensor dy = dy_of(args);
  check_experts(dy, args.w, args.offsets, args.dx, /*over_out=*/true);
  check_rounding(args.rounding, dy, args.w);
}

void check(const GroupedActivationBackward& args) {
  NMOE_CHECK(args.pre.defined() || args.pre_codes.defined(), "pre-activations neither as values nor as codes");
  NMOE_CHECK(args.dpre.defined() || (args.dpre_columns.defined() && !args.keeps_dpre),
             "gradients of pre-activations wanted as values, of which nobody has the memory");
  const Tensor pre = pre_of(args), &w = args.w;
  const int64_t parts = activation_parts(args.kind);
  check_groups(args.dy, pre, args.offsets, w.dim(0));
  check_rounding(args.rounding, args.dy, w);
  NMOE_CHECK(w.shape().rank() == 3 && w.dtype() == pre.dtype() && args.dy.width() == w.dim(1) &&
                 pre.dim(1) == parts * w.dim(2),
             "gradients {} by experts' weights {} {} to {} {}", args.dy.source.shape(), dtype_name(w.dtype()),
             w.shape(), dtype_name(pre.dtype()), pre.shape());
  const Shape rows({pre.dim(0)}), hidden({pre.dim(0), w.dim(2)});
  NMOE_CHECK(args.row_weight.defined() ? is_stat(args.row_weight.dtype()) && args.row_weight.shape() == rows &&
                                             is(args.drow_weight, args.row_weight.dtype(), rows)
                                       : !args.drow_weight.defined(),
             "weights of {} rows {} with gradients {}", pre.dim(0), args.row_weight.shape(), args.drow_weight.shape());
  NMOE_CHECK((!args.dpre.defined() || is(args.dpre, pre.dtype(), pre.shape())) &&
                 (!args.h.defined() || is(args.h, pre.dtype(), hidden)),
             "gradients {} {} and activations {} {} of {} {}", dtype_name(args.dpre.dtype()), args.dpre.shape(),
             dtype_name(args.h.dtype()), args.h.shape(), dtype_name(pre.dtype()), pre.shape());
  NMOE_CHECK(args.dpre_codes.defined() || !args.dpre_columns.defined(), "codes of columns {} without those of rows",
             args.dpre_columns.values.shape());
  check_codes(args.dpre_codes, pre.shape());
  check_codes(args.pre_codes, pre.shape());
  check_codes(args.dpre_columns, pre.dim(0), pre.dim(1), w.dim(0));
  check_codes(args.h_columns, pre.dim(0), w.dim(2), w.dim(0));
}

void check(const ExpertBiasBackward& args) {
  const Tensor& bias = args.bias.values;
  NMOE_CHECK(bias.shape().rank() == 2, "experts' biases {}", bias.shape());
  check_groups(args.dy, args.offsets, bias.dim(0));
  check_bias(args.bias, bias.dim(0), args.dy.num_rows(), args.dy.width());
  NMOE_CHECK(is(args.dvalues, bias.dtype(), bias.shape()) &&
                 (args.bias.row_weight.defined() ? is(args.drow_weight, bias.dtype(), args.bias.row_weight.shape())
                                                 : !args.drow_weight.defined()),
             "gradients {} and {} of biases {} and weights {}", args.dvalues.shape(), args.drow_weight.shape(),
             bias.shape(), args.bias.row_weight.shape());
}

void check(const GroupedLinearBackwardWeight& args) {
  const Tensor& dw = args.dw;
  NMOE_CHECK(dw.shape().rank() == 3 && is_stat(dw.dtype()), "gradients {} {} of experts' weights",
             dtype_name(dw.dtype()), dw.shape());
  NMOE_CHECK(args.rounding.format == OperandFormat::kFp8 || !(args.x_columns.defined() || args.dy_columns.defined()),
             "codes of columns are operands of products in FP8");
  NMOE_CHECK(args.rounding.format == OperandFormat::kAct || !args.rounding.product_scale.defined(),
             "a product that is scaled, of operands that are to be rounded");
  // Beside codes of its columns x may be anything, and dy undefined; one of the two is there as values.
  const bool has_x = !args.x_columns.defined(), has_dy = args.dy.source.defined();
  NMOE_CHECK(has_dy || args.dy_columns.defined(), "gradients of outputs neither as values nor as codes of columns");
  NMOE_CHECK(has_dy || has_x, "codes of columns of both sides, values of none");
  if (has_dy && has_x) {
    check_groups(args.dy, args.x, args.offsets, dw.dim(0));
  } else {
    check_groups(args.either(), args.offsets, dw.dim(0));
  }
  NMOE_CHECK((!has_dy || args.dy.width() == dw.dim(1)) && (!has_x || args.x.width() == dw.dim(2)),
             "gradients {} by {} and {}", dw.shape(), args.dy.source.shape(), args.x.source.shape());
  check_codes(args.x_columns, args.num_rows(), dw.dim(2), dw.dim(0));
  check_codes(args.dy_columns, args.num_rows(), dw.dim(1), dw.dim(0));
  NMOE_CHECK(!args.squares.defined() || (!args.accumulate && is(args.squares, DType::kF64, square_parts(dw.shape()))),
             "squares {} of gradients {}, added to: {}", args.squares.shape(), dw.shape(), args.accumulate);
}

}  // namespace nmoe
