// Backward of the gated delta rule. A sequence's states are made again: first those at the beginnings of stretches of
// kStretch tokens, then, stretch by stretch from the last, those after each token of it.
#include <cmath>

#include "ops/cpu/delta_rule.h"
#include "ops/cpu/documents.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t kStretch = 64;

// A thread's room for a head of a sequence.
template <class Real>
struct SequenceRoom {
  SequenceRoom(Real* at, const DeltaRuleSizes& sizes, int64_t seq_len) {
    const auto take = [&](int64_t size) { return std::exchange(at, at + size); };
    const int64_t size = sizes.state(), stretches = ceil_div(seq_len, kStretch);
    zeros = take(size), dstate = take(size), state = take(size);
    starts = take(stretches * size), states = take(kStretch * size);
    q = take(kStretch * sizes.key_dim), k = take(kStretch * sizes.key_dim);
    errors = take(kStretch * sizes.value_dim), y = take(sizes.value_dim), delta = take(sizes.value_dim),
    ddelta = take(sizes.value_dim);
    dq = take(sizes.key_dim), dk = take(sizes.key_dim);
  }
  static int64_t elements(const DeltaRuleSizes& sizes, int64_t seq_len) {
    return (3 + ceil_div(seq_len, kStretch) + kStretch) * sizes.state() + (2 * kStretch + 2) * sizes.key_dim +
           (kStretch + 3) * sizes.value_dim;
  }

  Real *zeros, *dstate, *state;  // [K, V]; the gradient of the state after the token at hand
  Real *starts, *states;         // [stretches, K, V] before, [kStretch, K, V] after a token
  Real *q, *k;                   // [kStretch, K], normed
  Real* errors;                  // [kStretch, V]
  Real *y, *delta, *ddelta;      // [V]
  Real *dq, *dk;                 // [K], of normed rows
};

// One head in one sequence.
template <class Real>
struct HeadSequence {
  const DeltaRuleBackward& args;
  DeltaRuleSizes sizes;
  const uint8_t* begins_document;
  int64_t seq, head;

  int64_t group() const { return head / sizes.group_size(); }
  int64_t first() const { return seq * args.in.seq_len; }
  int64_t end() const { return first() + args.in.seq_len; }
  // The place of the head's boundary state.
  int64_t boundary() const { return (seq * sizes.heads + head) * sizes.state(); }
  bool is_first_of_group() const { return head % sizes.group_size() == 0; }
  // What token t's state comes from: `before`, unless a document begins with it.
  const Real* from(int64_t t, const Real* before, const SequenceRoom<Real>& room) const {
    if (t == first() && args.in.initial_state.defined()) return args.in.initial_state.data<Real>() + boundary();
    return begins_document[t] != 0 ? room.zeros : before;
  }
  // Token t, whose normed rows go to q and k.
  DeltaToken<Real> token(int64_t t, Real* q, Real* k) const {
    delta_norm(delta_row<Real>(args.in.q, t, group()), sizes.key_dim, delta_scale<Real>(sizes), q);
    delta_norm(delta_row<Real>(args.in.k, t, group()), sizes.key_dim, Real{1}, k);
    return {.q = q, .k = k, .v = delta_row<Real>(args.in.v, t, head), .gates = delta_gates_of<Real>(args.in, t, head)};
  }
};

// room.starts
template <class Real>
void fill_starts(const HeadSequence<Real>& of, const SequenceRoom<Real>& room) {
  const DeltaRuleSizes& sizes = of.sizes;
  const Real* before = room.zeros;
  for (int64_t t = of.first(); t < of.end(); ++t) {
    const int64_t place = t - of.first();
    const Real* const from = of.from(t, before, room);
    if (place % kStretch == 0) std::copy_n(from, sizes.state(), room.starts + place / kStretch * sizes.state());
    delta_step(of.token(t, room.q, room.k), sizes.key_dim, sizes.value_dim, from, room.state, room.errors, room.y);
    before = room.state;
  }
}

// room.states, q, k and errors of tokens [begin, end), a stretch.
template <class Real>
void fill_stretch(const HeadSequence<Real>& of, int64_t begin, int64_t end, const SequenceRoom<Real>& room) {
  const DeltaRuleSizes& sizes = of.sizes;
  const Real* before = room.starts + (begin - of.first()) / kStretch * sizes.state();
  for (int64_t t = begin; t < end; ++t) {
    const int64_t i = t - begin;
    Real* const to = room.states + i * sizes.state();
    const DeltaToken<Real> token = of.token(t, room.q + i * sizes.key_dim, room.k + i * sizes.key_dim);
    delta_step(token, sizes.key_dim, sizes.value_dim, of.from(t, before, room), to, room.errors + i * sizes.value_dim,
               room.y);
    before = to;
  }
}

// What comes through y = S^T q and S = P + k delta^T: dS is completed; dq and ddelta are =, dk is =.
template <class Real>
void output_gradients(const DeltaToken<Real>& token, const DeltaRuleSizes& sizes, const Real* after, const Real* dy,
                      const SequenceRoom<Real>& room) {
  const int64_t V = sizes.value_dim;
  std::fill_n(room.ddelta, V, Real{0});
  for (int64_t i = 0; i < sizes.key_dim; ++i) {
    const Real* const row = after + i * V;
    Real* const drow = room.dstate + i * V;
    const Real q = token.q[i], k = token.k[i];
    Real dq = 0, dk = 0;
#pragma omp simd reduction(+ : dq, dk)
    for (int64_t j = 0; j < V; ++j) {
      drow[j] += q * dy[j];
      room.ddelta[j] += k * drow[j];
      dq += row[j] * dy[j];
      dk += room.delta[j] * drow[j];
    }
    room.dq[i] = dq;
    room.dk[i] = dk;
  }
}

// What comes through error = v - P^T k and P = decay * from, with derror [V]: dk is +=, dS becomes that of the state
// before. Returns the gradient of decay.
template <class Real>
Real state_gradients(const DeltaToken<Real>& token, const DeltaRuleSizes& sizes, const Real* from, const Real* derror,
                     const SequenceRoom<Real>& room) {
  const int64_t V = sizes.value_dim;
  const Real decay = token.gates.decay;
  Real ddecay = 0;
  for (int64_t i = 0; i < sizes.key_dim; ++i) {
    const Real* const old = from + i * V;
    Real* const drow = room.dstate + i * V;
    const Real k = token.k[i];
    Real dk = 0, row_ddecay = 0;
#pragma omp simd reduction(+ : dk, row_ddecay)
    for (int64_t j = 0; j < V; ++j) {
      const Real dp = drow[j] - k * derror[j];
      dk += old[j] * derror[j];
      row_ddecay += old[j] * dp;
      drow[j] = decay * dp;
    }
    room.dk[i] -= decay * dk;
    ddecay += row_ddecay;
  }
  return ddecay;
}

// One more head of its group: to = row, or += row.
template <class Real>
void put_row(const Real* row, int64_t size, bool is_first, Real* to) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) to[i] = is_first ? row[i] : to[i] + row[i];
}

template <class Real>
struct ParameterSums {
  Real dt_bias = 0, a_log = 0;
};

// Gradients of token t, the i-th of its stretch, and of the state before it.
template <class Real>
void token_gradients(const HeadSequence<Real>& of, int64_t t, int64_t i, const SequenceRoom<Real>& room,
                     ParameterSums<Real>& sums) {
  const DeltaRuleSizes& sizes = of.sizes;
  const DeltaRuleBackward& args = of.args;
  const int64_t K = sizes.key_dim, V = sizes.value_dim, size = sizes.state();
  const DeltaToken<Real> token{
      .q = room.q + i * K, .k = room.k + i * K, .v = nullptr, .gates = delta_gates_of<Real>(args.in, t, of.head)};
  const Real* const error = room.errors + i * V;
  const Real* const before = i > 0 ? room.states + (i - 1) * size : room.starts + (t - of.first()) / kStretch * size;
  const auto [decay, beta, step] = token.gates;
  for (int64_t j = 0; j < V; ++j) room.delta[j] = beta * error[j];
  output_gradients(token, sizes, room.states + i * size, delta_row<Real>(args.dy, t, of.head), room);
  const Real dbeta = dot(room.ddelta, error, V);
  Real* const dv = delta_row<Real>(args.dv, t, of.head);  // the gradient of the error, too
  for (int64_t j = 0; j < V; ++j) dv[j] = beta * room.ddelta[j];
  const Real ddecay = state_gradients(token, sizes, of.from(t, before, room), dv, room);
  put_row(room.dq, K, of.is_first_of_group(), delta_row<Real>(args.dq, t, of.group()));
  put_row(room.dk, K, of.is_first_of_group(), delta_row<Real>(args.dk, t, of.group()));

  const Real a = args.in.a.rows_data<Real>()[t * args.in.a.stride() + of.head];
  const Real biased = a + args.in.dt_bias.data<Real>()[of.head];
  const Real slope = biased > static_cast<Real>(kSoftplusLinearAbove) ? 1 : 1 / (1 + std::exp(-biased));
  const Real dlog_decay = ddecay * decay, rate = -std::exp(args.in.a_log.data<Real>()[of.head]);
  const Real da = dlog_decay * rate * slope;
  args.da.rows_data<Real>()[t * args.da.stride() + of.head] = da;
  args.db.rows_data<Real>()[t * args.db.stride() + of.head] = dbeta * beta * (1 - beta);
  sums.dt_bias += da;
  sums.a_log += dlog_decay * rate * step;
}

// The whole of a head in a sequence, from its end to its beginning. Leaves dq and dk as gradients of normed rows.
template <class Real>
ParameterSums<Real> sequence_gradients(const HeadSequence<Real>& of, const SequenceRoom<Real>& room) {
  const DeltaRuleBackward& args = of.args;
  const int64_t size = of.sizes.state();
  std::fill_n(room.zeros, size, Real{0});
  fill_starts(of, room);
  args.dfinal_state.defined() ? std::copy_n(args.dfinal_state.data<Real>() + of.boundary(), size, room.dstate)
                              : std::fill_n(room.dstate, size, Real{0});
  ParameterSums<Real> sums;
  for (int64_t stretch = ceil_div(args.in.seq_len, kStretch) - 1; stretch >= 0; --stretch) {
    const int64_t begin = of.first() + stretch * kStretch, end = std::min(begin + kStretch, of.end());
    fill_stretch(of, begin, end, room);
    for (int64_t t = end - 1; t >= begin; --t) {
      token_gradients(of, t, t - begin, room, sums);
      if (of.begins_document[t] != 0 && t > of.first()) std::fill_n(room.dstate, size, Real{0});
    }
  }
  if (args.dinitial_state.defined()) {
    std::copy_n(room.dstate, size, args.dinitial_state.data<Real>() + of.boundary());
  }
  return sums;
}

// dx, from the gradient of x * scale * rstd to that of x.
template <class Real>
void norm_gradient(const Real* x, int64_t size, Real scale, Real* normed, Real* dx) {
  const Real rstd = delta_norm(x, size, scale, normed);
  const Real projection = rstd * rstd * dot(x, dx, size), factor = scale * rstd;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) dx[i] = factor * (dx[i] - x[i] * projection);
}

// gradient[h] += the sum of parts [B, H] over sequences
template <class Real>
void add_parts(const Tensor& parts, const Tensor& gradient) {
  for (int64_t head = 0; head < parts.dim(1); ++head) {
    Real sum = 0;
    for (int64_t seq = 0; seq < parts.dim(0); ++seq) sum += parts.data<Real>()[seq * parts.dim(1) + head];
    gradient.data<Real>()[head] += sum;
  }
}

}  // namespace

template <class Real>
void delta_rule_backward(Context& ctx, const DeltaRuleBackward& args) {
  const DeltaRuleInputs& in = args.in;
  const DeltaRuleSizes sizes = delta_rule_sizes(in.q, in.v);
  ArenaScope scope(ctx.scratch);
  const auto claim = [&](Shape shape) { return scope.allocate(DTypeOf<Real>::value, shape); };
  const Tensor begins = scope.allocate(DType::kU8, {sizes.tokens});
  const Tensor rooms = claim({ctx.num_threads(), SequenceRoom<Real>::elements(sizes, in.seq_len)});
  const Tensor dt_bias_parts = claim({in.num_seqs, sizes.heads}), a_log_parts = claim({in.num_seqs, sizes.heads});
  if (ctx.counting() || sizes.tokens == 0) return;
  mark_document_begins(in.num_seqs, in.seq_len, in.cu_seqlens, begins);
  ctx.pool.parallel_for(in.num_seqs * sizes.groups, [&](int64_t task, int thread) {
    const int64_t seq = task / sizes.groups, group = task % sizes.groups;
    const SequenceRoom<Real> room(rooms[thread].template data<Real>(), sizes, in.seq_len);
    for (int64_t head = group * sizes.group_size(); head < (group + 1) * sizes.group_size(); ++head) {
      const ParameterSums<Real> sums = sequence_gradients<Real>(
          {.args = args, .sizes = sizes, .begins_document = begins.data<uint8_t>(), .seq = seq, .head = head}, room);
      dt_bias_parts.data<Real>()[seq * sizes.heads + head] = sums.dt_bias;
      a_log_parts.data<Real>()[seq * sizes.heads + head] = sums.a_log;
    }
    for (int64_t t = seq * in.seq_len; t < (seq + 1) * in.seq_len; ++t) {
      norm_gradient(delta_row<Real>(in.q, t, group), sizes.key_dim, delta_scale<Real>(sizes), room.q,
                    delta_row<Real>(args.dq, t, group));
      norm_gradient(delta_row<Real>(in.k, t, group), sizes.key_dim, Real{1}, room.k,
                    delta_row<Real>(args.dk, t, group));
    }
  });
  add_parts<Real>(dt_bias_parts, args.ddt_bias);
  add_parts<Real>(a_log_parts, args.da_log);
}

NMOE_CPU_INSTANTIATE(delta_rule_backward, DeltaRuleBackward)

}  // namespace nmoe::cpu
