#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// x, b, c and dt or their gradients, with the parameters or theirs.
template <class Args>
void check_rows(const SsdSizes& sizes, const Args& args, const Tensor& x, const Tensor& b, const Tensor& c,
                const Tensor& dt) {
  const DType act = args.x.dtype();
  const auto& [T, H, P, G, N, Q] = sizes;
  NMOE_CHECK(G > 0 && H % G == 0 && Q > 0 && Q <= kMostSsdChunk && is_act(act) && is(x, act, {T, H, P}) &&
                 is(b, act, {T, G, N}) && is(c, act, {T, G, N}) && is(dt, act, {T, H}),
             "a scan of x {} {}, b {}, c {} and dt {} in chunks of {}", dtype_name(x.dtype()), x.shape(), b.shape(),
             c.shape(), dt.shape(), Q);
}

void check_parameters(const Tensor& dt_bias, const Tensor& a_log, const Tensor& d, int64_t num_heads) {
  for (const Tensor& each : {dt_bias, a_log, d}) {
    NMOE_CHECK(is_stat(each.dtype()) && each.shape() == Shape({num_heads}), "a scan of {} heads with a parameter {} {}",
               num_heads, dtype_name(each.dtype()), each.shape());
  }
}

void check_state(const Tensor& state, const SsdInputs& in) {
  const SsdSizes sizes = ssd_sizes(in);
  const Shape shape{in.num_seqs, sizes.heads, sizes.head_dim, sizes.state};
  NMOE_CHECK(!state.defined() || (is_stat(state.dtype()) && state.shape() == shape), "a state {} {}, not {}",
             dtype_name(state.dtype()), state.shape(), shape);
}

void check_inputs(const SsdInputs& in) {
  NMOE_CHECK(in.x.shape().rank() == 3 && in.b.shape().rank() == 3, "a scan of x {} and b {}", in.x.shape(),
             in.b.shape());
  check_rows(ssd_sizes(in), in, in.x, in.b, in.c, in.dt);
  check_parameters(in.dt_bias, in.a_log, in.d, in.x.dim(1));
  check_state(in.initial_state, in);
  NMOE_CHECK(are_sequences(in.x.dim(0), in.num_seqs, in.seq_len, in.cu_seqlens),
             "a scan of {} over {} sequences of {}, documents {}", in.x.shape(), in.num_seqs, in.seq_len,
             in.cu_seqlens.shape());
}

}  // namespace

void check(const SsdForward& args) {
  check_inputs(args.in);
  check_state(args.final_state, args.in);
  NMOE_CHECK(is(args.y, args.in.x.dtype(), args.in.x.shape()), "a scan of {} to {} {}", args.in.x.shape(),
             dtype_name(args.y.dtype()), args.y.shape());
}

void check(const SsdBackward& args) {
  check_inputs(args.in);
  check_rows(ssd_sizes(args.in), args.in, args.dx, args.db, args.dc, args.ddt);
  check_parameters(args.ddt_bias, args.da_log, args.dd, args.in.x.dim(1));
  check_state(args.dfinal_state, args.in);
  check_state(args.dinitial_state, args.in);
  NMOE_CHECK(is(args.dy, args.in.x.dtype(), args.in.x.shape()) &&
                 args.dinitial_state.defined() == args.in.initial_state.defined(),
             "the gradient {} of a scan of {}; initial state {} with gradient {}", args.dy.shape(), args.in.x.shape(),
             args.in.initial_state.shape(), args.dinitial_state.shape());
}

void check(const CachedSsd& args) {
  NMOE_CHECK(args.x.shape().rank() == 3 && args.b.shape().rank() == 3 && args.open_x.shape().rank() == 3,
             "a cached scan of x {} and b {}, open {}", args.x.shape(), args.b.shape(), args.open_x.shape());
  const SsdSizes sizes = ssd_sizes(args);
  const auto& [T, H, P, G, N, Q] = sizes;
  check_rows(sizes, args, args.x, args.b, args.c, args.dt);
  check_parameters(args.dt_bias, args.a_log, args.d, H);
  const DType act = args.x.dtype(), stat = args.dt_bias.dtype();
  const int64_t Z = args.states.dim(0);
  NMOE_CHECK(is(args.slots, DType::kI32, {T}) && is(args.positions, DType::kI32, {T}) &&
                 is(args.states, stat, {Z, H, P, N}) && is(args.open_x, act, {Z, Q, H * P}) &&
                 is(args.open_b, act, {Z, Q, G * N}) && is(args.open_step, stat, {Z, Q, H}) &&
                 is(args.y, act, {T, H, P}),
             "a cached scan of {} to {}: slots {}, positions {}, states {}, open x {}, b {} and steps {}",
             args.x.shape(), args.y.shape(), args.slots.shape(), args.positions.shape(), args.states.shape(),
             args.open_x.shape(), args.open_b.shape(), args.open_step.shape());
}

}  // namespace nmoe
