#include "ops/cpu/delta_rule.h"

#include <cmath>

#include "ops/cpu/documents.h"
#include "ops/cpu/ssd_chunks.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {

template <class Real>
[[gnu::noinline]] Real delta_norm(const Real* x, int64_t size, Real scale, Real* out) {
  const Real rstd = 1 / std::sqrt(dot(x, x, size) + static_cast<Real>(kDeltaRuleNormEps));
  const Real factor = rstd * scale;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = x[i] * factor;
  return rstd;
}

template <class Real>
[[gnu::noinline]] DeltaGates<Real> delta_gates(Real a, Real b, Real dt_bias, Real a_log) {
  const Real step = ssd_step(a + dt_bias);
  return {.decay = ssd_decay(step * -std::exp(a_log)), .beta = 1 / (1 + std::exp(-b)), .step = step};
}

template <class Real>
[[gnu::noinline]] void delta_step(const DeltaToken<Real>& token, int64_t key_dim, int64_t value_dim, const Real* from,
                                  Real* to, Real* error, Real* y) {
  const auto [decay, beta, step] = token.gates;
  std::fill_n(error, value_dim, Real{0});
  for (int64_t i = 0; i < key_dim; ++i) {
    const Real* const old = from + i * value_dim;
    Real* const row = to + i * value_dim;
    const Real k = token.k[i];
#pragma omp simd
    for (int64_t j = 0; j < value_dim; ++j) {
      row[j] = decay * old[j];
      error[j] += k * row[j];
    }
  }
#pragma omp simd
  for (int64_t j = 0; j < value_dim; ++j) error[j] = token.v[j] - error[j];
  std::fill_n(y, value_dim, Real{0});
  for (int64_t i = 0; i < key_dim; ++i) {
    Real* const row = to + i * value_dim;
    const Real k = token.k[i] * beta, q = token.q[i];
#pragma omp simd
    for (int64_t j = 0; j < value_dim; ++j) {
      row[j] += k * error[j];
      y[j] += q * row[j];
    }
  }
}

namespace {

// A thread's room: q' and k' [K] each, an error [V].
template <class Real>
struct TokenRoom {
  TokenRoom(Real* at, const DeltaRuleSizes& sizes) : q(at), k(at + sizes.key_dim), error(at + 2 * sizes.key_dim) {}
  static int64_t elements(const DeltaRuleSizes& sizes) { return 2 * sizes.key_dim + sizes.value_dim; }

  Real *q, *k, *error;
};

// Row t of a head, from and to `state`.
template <class Real, class Args>
void advance(const Args& args, const Tensor& y, const DeltaRuleSizes& sizes, int64_t t, int64_t head,
             const TokenRoom<Real>& room, Real* state) {
  const int64_t group = head / sizes.group_size();
  delta_norm(delta_row<Real>(args.q, t, group), sizes.key_dim, delta_scale<Real>(sizes), room.q);
  delta_norm(delta_row<Real>(args.k, t, group), sizes.key_dim, Real{1}, room.k);
  delta_step<Real>(
      {.q = room.q, .k = room.k, .v = delta_row<Real>(args.v, t, head), .gates = delta_gates_of<Real>(args, t, head)},
      sizes.key_dim, sizes.value_dim, state, state, room.error, delta_row<Real>(y, t, head));
}

}  // namespace

template <class Real>
void delta_rule_forward(Context& ctx, const DeltaRuleForward& args) {
  const DeltaRuleInputs& in = args.in;
  const DeltaRuleSizes sizes = delta_rule_sizes(in.q, in.v);
  const int64_t H = sizes.heads, size = sizes.state();
  ArenaScope scope(ctx.scratch);
  const Tensor begins = scope.allocate(DType::kU8, {sizes.tokens});
  const Tensor rooms = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), TokenRoom<Real>::elements(sizes)});
  const Tensor states = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), size});
  if (ctx.counting() || sizes.tokens == 0) return;
  mark_document_begins(in.num_seqs, in.seq_len, in.cu_seqlens, begins);
  const uint8_t* const begins_document = begins.data<uint8_t>();
  ctx.pool.parallel_for(in.num_seqs * H, [&](int64_t task, int thread) {
    const int64_t head = task % H, first = task / H * in.seq_len;
    const TokenRoom<Real> room(rooms[thread].template data<Real>(), sizes);
    Real* const state = states[thread].template data<Real>();
    for (int64_t t = first; t < first + in.seq_len; ++t) {
      if (t == first && in.initial_state.defined()) {
        std::copy_n(in.initial_state.data<Real>() + task * size, size, state);
      } else if (begins_document[t] != 0) {
        std::fill_n(state, size, Real{0});
      }
      advance<Real>(in, args.y, sizes, t, head, room, state);
    }
    if (args.final_state.defined()) std::copy_n(state, size, args.final_state.data<Real>() + task * size);
  });
}

template <class Real>
void cached_delta_rule(Context& ctx, const CachedDeltaRule& args) {
  const DeltaRuleSizes sizes = delta_rule_sizes(args.q, args.v);
  ArenaScope scope(ctx.scratch);
  const Tensor rooms = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), TokenRoom<Real>::elements(sizes)});
  if (ctx.counting()) return;
  const int32_t* const slots = args.slots.data<int32_t>();
  const int32_t* const positions = args.positions.data<int32_t>();
  ctx.pool.parallel_for(sizes.heads, [&](int64_t head, int thread) {
    const TokenRoom<Real> room(rooms[thread].template data<Real>(), sizes);
    for (int64_t t = 0; t < sizes.tokens; ++t) {
      if (slots[t] < 0) {
        std::fill_n(delta_row<Real>(args.y, t, head), sizes.value_dim, Real{0});
        continue;
      }
      Real* const state = args.states.data<Real>() + (slots[t] * sizes.heads + head) * sizes.state();
      if (positions[t] == 0) std::fill_n(state, sizes.state(), Real{0});
      advance<Real>(args, args.y, sizes, t, head, room, state);
    }
  });
}

#define NMOE_INSTANTIATE_DELTA_RULE(Real)                              \
  template Real delta_norm<Real>(const Real*, int64_t, Real, Real*);   \
  template DeltaGates<Real> delta_gates<Real>(Real, Real, Real, Real); \
  template void delta_step<Real>(const DeltaToken<Real>&, int64_t, int64_t, const Real*, Real*, Real*, Real*);
NMOE_INSTANTIATE_DELTA_RULE(float)
NMOE_INSTANTIATE_DELTA_RULE(double)
#undef NMOE_INSTANTIATE_DELTA_RULE
NMOE_CPU_INSTANTIATE(delta_rule_forward, DeltaRuleForward)
NMOE_CPU_INSTANTIATE(cached_delta_rule, CachedDeltaRule)

}  // namespace nmoe::cpu
