#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

void check_norm(const Tensor& x, const Tensor& gain, const Tensor& y, const Tensor& rstd, const RowCodes& codes) {
  NMOE_CHECK((x.shape().rank() == 2 || x.shape().rank() == 3) && is_act(x.dtype()) && y.shape() == x.shape() &&
                 y.dtype() == x.dtype() && is_stat(gain.dtype()) && gain.num_elements() == x.dim(-1) &&
                 is_stat(rstd.dtype()) && rstd.num_elements() == norm_vectors(x),
             "RMSNorm of {} {} with gain {} to {} {}, rstd {}", dtype_name(x.dtype()), x.shape(), gain.shape(),
             dtype_name(y.dtype()), y.shape(), rstd.shape());
  check_codes(codes, {norm_vectors(x), x.dim(-1)});
}

void check_gated(const Tensor& x, const Tensor& z, const Tensor& gain, const Tensor& y, const Tensor& rstd) {
  NMOE_CHECK(x.shape().rank() == 2 && is_act(x.dtype()) && is(z, x.dtype(), x.shape()) && is(y, x.dtype(), x.shape()) &&
                 is_stat(gain.dtype()) && gain.shape() == Shape({x.dim(1)}) && is_stat(rstd.dtype()) &&
                 rstd.shape().rank() == 2 && rstd.dim(0) == x.dim(0) && rstd.dim(1) > 0 && x.dim(1) % rstd.dim(1) == 0,
             "a gated norm of {} {} by {} with gain {} to {} {}, rstd {}", dtype_name(x.dtype()), x.shape(), z.shape(),
             gain.shape(), dtype_name(y.dtype()), y.shape(), rstd.shape());
}

}  // namespace

void check(const GatedNormForward& args) {
  check_gated(args.x, args.z, args.gain, args.y, args.rstd);
  NMOE_CHECK(args.num_groups == args.rstd.dim(1), "{} groups with rstd {}", args.num_groups, args.rstd.shape());
}

void check(const GatedNormBackward& args) {
  check_gated(args.x, args.z, args.gain, args.dx, args.rstd);
  check_gated(args.dy, args.dz, args.dgain, args.dx, args.rstd);
}

void check(const RmsNormForward& args) { check_norm(args.x, args.gain, args.y, args.rstd, args.y_codes); }

void check(const RmsNormBackward& args) {
  check_norm(args.x, args.gain, args.dy, args.rstd, {});
  check_norm(args.x, args.dgain, args.dx, args.rstd, args.dx_codes);
}

}  // namespace nmoe
