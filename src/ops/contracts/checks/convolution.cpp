#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

void check_taps(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  NMOE_CHECK(x.shape().rank() == 2 && is_act(x.dtype()) && is_stat(weight.dtype()) && weight.shape().rank() == 2 &&
                 weight.dim(0) == x.dim(1) && weight.dim(1) > 1 &&
                 (!bias.defined() || is(bias, weight.dtype(), {x.dim(1)})),
             "a convolution of {} {} with weights {} and bias {}", dtype_name(x.dtype()), x.shape(), weight.shape(),
             bias.shape());
}

// Rows at a boundary, where there are any.
void check_boundary(const Tensor& rows, const ConvolutionInputs& in) {
  const Shape shape{in.num_seqs, in.weight.dim(1) - 1, in.x.dim(1)};
  NMOE_CHECK(!rows.defined() || is(rows, in.x.dtype(), shape), "rows {} {} at the boundary, not {}",
             dtype_name(rows.dtype()), rows.shape(), shape);
}

void check_inputs(const ConvolutionInputs& in, const Tensor& y) {
  check_taps(in.x, in.weight, in.bias);
  check_boundary(in.before, in);
  NMOE_CHECK(are_sequences(in.x.dim(0), in.num_seqs, in.seq_len, in.cu_seqlens) && is(y, in.x.dtype(), in.x.shape()),
             "a convolution of {} over {} sequences of {} to {}, documents {}", in.x.shape(), in.num_seqs, in.seq_len,
             y.shape(), in.cu_seqlens.shape());
}

}  // namespace

void check(const ConvolutionForward& args) {
  check_inputs(args.in, args.y);
  check_boundary(args.after, args.in);
}

void check(const ConvolutionBackward& args) {
  check_inputs(args.in, args.dy);
  check_inputs(args.in, args.dx);
  check_taps(args.dx, args.dweight, args.dbias);
  check_boundary(args.dafter, args.in);
  check_boundary(args.dbefore, args.in);
  NMOE_CHECK(args.dweight.dim(1) == args.in.weight.dim(1) && args.dbefore.defined() == args.in.before.defined() &&
                 args.dbias.defined() == args.in.bias.defined(),
             "gradients {} of weights {}, {} of biases {}; rows before {} with gradient {}", args.dweight.shape(),
             args.in.weight.shape(), args.dbias.shape(), args.in.bias.shape(), args.in.before.shape(),
             args.dbefore.shape());
}

void check(const CachedConvolution& args) {
  check_taps(args.x, args.weight, args.bias);
  const int64_t T = args.x.dim(0), W = args.x.dim(1);
  const Tensor& rows = args.rows;
  NMOE_CHECK(is(args.slots, DType::kI32, {T}) && is(args.positions, DType::kI32, {T}) &&
                 rows.dtype() == args.x.dtype() && rows.shape().rank() == 3 && rows.dim(1) == args.weight.dim(1) - 1 &&
                 rows.dim(2) == W && is(args.y, args.x.dtype(), args.x.shape()),
             "a cached convolution of {} to {}: slots {}, positions {}, rows kept {}", args.x.shape(), args.y.shape(),
             args.slots.shape(), args.positions.shape(), rows.shape());
}

}  // namespace nmoe
