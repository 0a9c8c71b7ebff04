#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

// Rows of a delta rule, or their gradients.
struct DeltaRuleRows {
  const Tensor &q, &k, &v, &b, &a;
};

void check_rows(const DeltaRuleRows& of, DType act) {
  const auto& [q, k, v, b, a] = of;
  NMOE_CHECK(q.shape().rank() == 3 && v.shape().rank() == 3 && is_act(act), "a delta rule of q {} {} and v {}",
             dtype_name(q.dtype()), q.shape(), v.shape());
  const auto [T, G, K, H, V] = delta_rule_sizes(q, v);
  NMOE_CHECK(G > 0 && K > 0 && V > 0 && H % G == 0 && is(q, act, {T, G, K}) && is(k, act, {T, G, K}) &&
                 is(v, act, {T, H, V}) && is(b, act, {T, H}) && is(a, act, {T, H}),
             "a delta rule of q {}, k {}, v {}, b {} and a {}", q.shape(), k.shape(), v.shape(), b.shape(), a.shape());
}

void check_parameters(const Tensor& dt_bias, const Tensor& a_log, int64_t num_heads) {
  for (const Tensor& each : {dt_bias, a_log}) {
    NMOE_CHECK(is_stat(each.dtype()) && each.shape() == Shape({num_heads}),
               "a delta rule of {} heads with a parameter {} {}", num_heads, dtype_name(each.dtype()), each.shape());
  }
}

void check_state(const Tensor& state, const DeltaRuleInputs& in) {
  const DeltaRuleSizes sizes = delta_rule_sizes(in.q, in.v);
  const Shape shape{in.num_seqs, sizes.heads, sizes.key_dim, sizes.value_dim};
  NMOE_CHECK(!state.defined() || (is_stat(state.dtype()) && state.shape() == shape), "a state {} {}, not {}",
             dtype_name(state.dtype()), state.shape(), shape);
}

void check_inputs(const DeltaRuleInputs& in) {
  check_rows({in.q, in.k, in.v, in.b, in.a}, in.v.dtype());
  check_parameters(in.dt_bias, in.a_log, in.v.dim(1));
  check_state(in.initial_state, in);
  NMOE_CHECK(are_sequences(in.v.dim(0), in.num_seqs, in.seq_len, in.cu_seqlens),
             "a delta rule of {} over {} sequences of {}, documents {}", in.v.shape(), in.num_seqs, in.seq_len,
             in.cu_seqlens.shape());
}

}  // namespace

void check(const DeltaRuleForward& args) {
  check_inputs(args.in);
  check_state(args.final_state, args.in);
  NMOE_CHECK(is(args.y, args.in.v.dtype(), args.in.v.shape()), "a delta rule of {} to {} {}", args.in.v.shape(),
             dtype_name(args.y.dtype()), args.y.shape());
}

void check(const DeltaRuleBackward& args) {
  check_inputs(args.in);
  check_rows({args.dq, args.dk, args.dv, args.db, args.da}, args.in.v.dtype());
  check_parameters(args.ddt_bias, args.da_log, args.in.v.dim(1));
  check_state(args.dfinal_state, args.in);
  check_state(args.dinitial_state, args.in);
  NMOE_CHECK(args.dq.shape() == args.in.q.shape() && is(args.dy, args.in.v.dtype(), args.in.v.shape()) &&
                 args.dv.shape() == args.in.v.shape() &&
                 args.dinitial_state.defined() == args.in.initial_state.defined(),
             "gradients {} of a delta rule of q {} and v {}; initial state {} with gradient {}", args.dy.shape(),
             args.in.q.shape(), args.in.v.shape(), args.in.initial_state.shape(), args.dinitial_state.shape());
}

void check(const CachedDeltaRule& args) {
  check_rows({args.q, args.k, args.v, args.b, args.a}, args.v.dtype());
  check_parameters(args.dt_bias, args.a_log, args.v.dim(1));
  const DeltaRuleSizes sizes = delta_rule_sizes(args.q, args.v);
  const Tensor& states = args.states;
  NMOE_CHECK(is(args.slots, DType::kI32, {sizes.tokens}) && is(args.positions, DType::kI32, {sizes.tokens}) &&
                 states.shape().rank() == 4 &&
                 is(states, args.dt_bias.dtype(), {states.dim(0), sizes.heads, sizes.key_dim, sizes.value_dim}) &&
                 is(args.y, args.v.dtype(), args.v.shape()),
             "a cached delta rule of {} to {}: slots {}, positions {}, states {}", args.v.shape(), args.y.shape(),
             args.slots.shape(), args.positions.shape(), states.shape());
}

}  // namespace nmoe
