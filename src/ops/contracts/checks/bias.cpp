#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

void check_rows(const Tensor& rows, const Tensor& bias) {
  NMOE_CHECK(
      rows.shape().rank() == 2 && is_act(rows.dtype()) && is_stat(bias.dtype()) && bias.shape() == Shape({rows.dim(1)}),
      "rows {} {} with a bias {} {}", dtype_name(rows.dtype()), rows.shape(), dtype_name(bias.dtype()), bias.shape());
}

}  // namespace

void check(const BiasForward& args) {
  check_rows(args.y, args.bias);
  NMOE_CHECK(!args.x.defined() || is(args.x, args.y.dtype(), args.y.shape()), "a bias on {} {} to {} {}",
             dtype_name(args.x.dtype()), args.x.shape(), dtype_name(args.y.dtype()), args.y.shape());
}

void check(const BiasBackward& args) { check_rows(args.dy, args.dbias); }

}  // namespace nmoe
