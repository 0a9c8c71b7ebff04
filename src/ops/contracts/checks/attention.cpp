#include <initializer_list>
#include <utility>

#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

void check_shape(const AttentionShape& shape, int64_t num_tokens) {
  const Tensor& bounds = shape.cu_seqlens;
  NMOE_CHECK(are_sequences(num_tokens, shape.num_seqs, shape.seq_len, bounds) && shape.window >= 0,
             "attention over {} sequences of {} with a window of {}: {} tokens, documents {} {}", shape.num_seqs,
             shape.seq_len, shape.window, num_tokens, dtype_name(bounds.dtype()), bounds.shape());
}

void check_heads(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out) {
  NMOE_CHECK(q.shape().rank() == 3 && k.shape().rank() == 3 && v.shape().rank() == 3, "attention of q {}, k {}, v {}",
             q.shape(), k.shape(), v.shape());
  const int64_t T = q.dim(0), H = q.dim(1), Dk = q.dim(2), G = k.dim(1), Dv = v.dim(2);
  NMOE_CHECK(G > 0 && H % G == 0 && is_act(q.dtype()) && is(k, q.dtype(), {T, G, Dk}) && is(v, q.dtype(), {T, G, Dv}) &&
                 is(out, q.dtype(), {T, H, Dv}),
             "attention of q {} {}, k {} {} and v {} {}, out {} {}", dtype_name(q.dtype()), q.shape(),
             dtype_name(k.dtype()), k.shape(), dtype_name(v.dtype()), v.shape(), dtype_name(out.dtype()), out.shape());
}

void check_parts(const Tensor& q, const Tensor& kv, const Tensor& k_rope, const Tensor& out) {
  const int64_t T = q.dim(0), H = q.dim(1), rope = k_rope.dim(1), nope = q.dim(2) - rope, Dv = out.dim(2);
  const DType act = q.dtype();
  NMOE_CHECK(nope >= 0 && is_act(act) && is(kv, act, {T, H, nope + Dv}) && is(k_rope, act, {T, rope}) &&
                 is(out, act, {T, H, Dv}),
             "attention of q {} {} to kv {} and k_rope {}, out {}", dtype_name(act), q.shape(), kv.shape(),
             k_rope.shape(), out.shape());
}

// Statistics of rows, [B, H, S].
void check_lse(const Tensor& lse, const Tensor& q) {
  NMOE_CHECK(is_stat(lse.dtype()) && lse.num_elements() == q.dim(0) * q.dim(1), "lse {} {} of q {}",
             dtype_name(lse.dtype()), lse.shape(), q.shape());
}

// Undefined, or one number of each head.
void check_sinks(const Tensor& sinks, const Tensor& q) {
  NMOE_CHECK(!sinks.defined() || (is_stat(sinks.dtype()) && sinks.shape() == Shape({q.dim(1)})), "sinks {} {} of q {}",
             dtype_name(sinks.dtype()), sinks.shape(), q.shape());
}

void check_pieces(const Tensor& positions, const Tensor& bounds, const Tensor& parents, int64_t num_rows) {
  NMOE_CHECK(is(positions, DType::kI32, {num_rows}) && bounds.dtype() == DType::kI32 && bounds.shape().rank() == 1 &&
                 bounds.dim(0) >= 2 && is(parents, DType::kI32, bounds.shape()),
             "{} rows in pieces: positions {}, bounds {}, parents {}", num_rows, positions.shape(), bounds.shape(),
             parents.shape());
}

void check_gradients(std::initializer_list<std::pair<Tensor, Tensor>> pairs) {
  for (const auto& [gradient, value] : pairs) {
    NMOE_CHECK(is(gradient, value.dtype(), value.shape()), "a gradient {} {} of {} {}", dtype_name(gradient.dtype()),
               gradient.shape(), dtype_name(value.dtype()), value.shape());
  }
}

// Rotation of heads [T, H, head_size].
void check_rotation(const Rope& rope, int64_t num_tokens, int64_t head_size) {
  NMOE_CHECK(is(rope.positions, DType::kI32, {num_tokens}) && is_stat(rope.cos.dtype()) &&
                 rope.cos.shape().rank() == 2 && is(rope.sin, rope.cos.dtype(), rope.cos.shape()) &&
                 rope.rope_offset >= 0 && rope.rope_offset + 2 * rope.cos.dim(1) <= head_size,
             "rope of {} heads of {} at offset {}, positions {}, tables {} and {}", num_tokens, head_size,
             rope.rope_offset, rope.positions.shape(), rope.cos.shape(), rope.sin.shape());
}

}  // namespace

void check(const Rope& args) {
  NMOE_CHECK(args.x.shape().rank() == 3 && is_act(args.x.dtype()), "rope of {} {}", dtype_name(args.x.dtype()),
             args.x.shape());
  check_rotation(args, args.x.dim(0), args.x.dim(2));
}

void check(const AttentionForward& args) {
  check_heads(args.q, args.k, args.v, args.out);
  check_shape(args.shape, args.q.dim(0));
  check_lse(args.lse, args.q);
  check_sinks(args.sinks, args.q);
}

void check(const AttentionBackward& args) {
  check_heads(args.q, args.k, args.v, args.out);
  check_shape(args.shape, args.q.dim(0));
  check_lse(args.lse, args.q);
  check_gradients({{args.dout, args.out}, {args.dq, args.q}, {args.dk, args.k}, {args.dv, args.v}});
  if (args.rope.positions.defined()) check_rotation(args.rope, args.q.dim(0), args.q.dim(2));
  check_sinks(args.sinks, args.q);
  check_sinks(args.dsinks, args.q);
  NMOE_CHECK(args.sinks.defined() == args.dsinks.defined(), "sinks {} with gradients {}", args.sinks.shape(),
             args.dsinks.shape());
}

void check(const TreeAttention& args) {
  check_heads(args.q, args.k, args.v, args.out);
  check_pieces(args.positions, args.bounds, args.parents, args.q.dim(0));
  check_sinks(args.sinks, args.q);
}

void check(const MlaAttentionForward& args) {
  check_parts(args.q, args.kv, args.k_rope, args.out);
  check_shape(args.shape, args.q.dim(0));
  check_lse(args.lse, args.q);
}

void check(const MlaAttentionBackward& args) {
  check_parts(args.q, args.kv, args.k_rope, args.out);
  check_shape(args.shape, args.q.dim(0));
  check_lse(args.lse, args.q);
  check_gradients({{args.dout, args.out}, {args.dq, args.q}, {args.dkv, args.kv}, {args.dk_rope, args.k_rope}});
  if (args.rope.positions.defined()) check_rotation(args.rope, args.q.dim(0), args.q.dim(2));
  check_codes(args.dkv_codes, {args.dkv.dim(0), args.dkv.shape().row_elements()});
}

void check(const MlaTreeAttention& args) {
  check_parts(args.q, args.kv, args.k_rope, args.out);
  check_pieces(args.positions, args.bounds, args.parents, args.q.dim(0));
}

}  // namespace nmoe
