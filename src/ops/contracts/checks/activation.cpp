#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// Pre-activations and one of what has their hidden units' shape.
void check_units(Activation kind, const Tensor& pre, const Tensor& row_weight, const Tensor& h,
                 const Tensor& num_rows) {
  NMOE_CHECK(is_act(pre.dtype()) && is(h, pre.dtype(), {pre.dim(0), pre.dim(1) / activation_parts(kind)}) &&
                 pre.dim(1) % activation_parts(kind) == 0,
             "activation of {} {} to {} {}", dtype_name(pre.dtype()), pre.shape(), dtype_name(h.dtype()), h.shape());
  NMOE_CHECK((!row_weight.defined() || (is_stat(row_weight.dtype()) && row_weight.shape() == Shape({pre.dim(0)}))) &&
                 is_one_if_defined(num_rows, DType::kI32),
             "activation of {} with weights of rows {} {}, number of rows {}", pre.shape(),
             dtype_name(row_weight.dtype()), row_weight.shape(), num_rows.shape());
}

}  // namespace

void check(const ActivationForward& args) {
  NMOE_CHECK(args.keeps_h || args.h_codes.defined(), "an activation that leaves neither values nor codes");
  NMOE_CHECK(!(args.pre_codes.defined() && args.h_columns.defined()), "codes of pre-activations beside columns");
  const int64_t width = args.pre.dim(1) / activation_parts(args.kind);
  if (args.h_columns.defined()) {
    NMOE_CHECK(args.offsets.dtype() == DType::kI32 && args.offsets.shape().rank() == 1,
               "codes of columns of groups {} {}", dtype_name(args.offsets.dtype()), args.offsets.shape());
    check_codes(args.h_columns, args.pre.dim(0), width, args.offsets.dim(0) - 1);
    if (!args.h.defined()) return;
  }
  check_units(args.kind, args.pre, args.row_weight, args.h, args.num_rows);
  check_codes(args.h_codes, args.h.shape());
  check_codes(args.pre_codes, args.pre.shape());
}

void check(const ActivationBackward& args) {
  check_units(args.kind, args.pre, args.row_weight, args.dh, args.num_rows);
  check_units(args.kind, args.dpre, args.drow_weight, args.dh, args.num_rows);
  NMOE_CHECK(args.row_weight.defined() == args.drow_weight.defined(), "weights of rows {} with gradients {}",
             args.row_weight.shape(), args.drow_weight.shape());
  NMOE_CHECK(!args.h.defined() || is(args.h, args.dh.dtype(), args.dh.shape()),
             "an activation {} {} beside gradients {}", dtype_name(args.h.dtype()), args.h.shape(), args.dh.shape());
  check_codes(args.dpre_codes, args.dpre.shape());
  check_codes(args.pre_codes, args.pre.shape());
}

namespace {

void check_gate(const Tensor& x, const Tensor& gate, const Tensor& y) {
  NMOE_CHECK(
      x.shape().rank() == 2 && is_act(x.dtype()) && is(gate, x.dtype(), x.shape()) && is(y, x.dtype(), x.shape()),
      "a gate {} {} of {} {} to {} {}", dtype_name(gate.dtype()), gate.shape(), dtype_name(x.dtype()), x.shape(),
      dtype_name(y.dtype()), y.shape());
}

}  // namespace

void check(const GateForward& args) { check_gate(args.x, args.gate, args.y); }

void check(const GateBackward& args) {
  check_gate(args.x, args.gate, args.dy);
  check_gate(args.dx, args.dgate, args.dy);
  NMOE_CHECK(args.dx.shape() == args.x.shape(), "the gradient {} of a gate of {}", args.dx.shape(), args.x.shape());
}

}  // namespace nmoe
