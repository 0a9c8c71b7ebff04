// What the gated delta rule's forward, backward and generation share (contracts/delta_rule.h has formulas and orders of
// sums): the arithmetic of a token in a head.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/contracts/delta_rule.h"
#include "ops/cpu/operations.h"

namespace nmoe::cpu {

// None of these is put into its callers, so that all have the same bits.

// out = x * scale / sqrt(sum of x^2 + eps). Returns 1 / sqrt(...).
template <class Real>
Real delta_norm(const Real* x, int64_t size, Real scale, Real* out);

// What a token and a head's parameters make of its state, by `size` decays: decay, and step = softplus(a + dt_bias).
template <class Real>
void delta_decays(const Real* a, const Real* dt_bias, Real a_log, int64_t size, Real* decay, Real* step);
template <class Real>
Real delta_beta(Real b);

// A token of a head.
template <class Real>
struct DeltaToken {
  const Real *q, *k;  // [K], normed
  const Real* v;      // [V]
  const Real* decay;  // [decays]
  Real beta;
  int64_t decays;

  Real decay_of(int64_t key) const { return decay[decays == 1 ? 0 : key]; }
};
// `to` [K, V] = the state after the token, which comes to `from`; they may be the same. y [V] is its output, and
// error [V] is v - S^T k'.
template <class Real>
void delta_step(const DeltaToken<Real>& token, int64_t key_dim, int64_t value_dim, const Real* from, Real* to,
                Real* error, Real* y);

// One head, or group, of a row of x [T, heads, size].
template <class Real>
Real* delta_row(const Tensor& x, int64_t t, int64_t head) {
  return x.rows_data<Real>() + t * x.stride() + head * x.dim(2);
}
template <class Real>
Real delta_scale(const DeltaRuleSizes& sizes) {
  return static_cast<Real>(1 / std::sqrt(static_cast<double>(sizes.key_dim)));
}
// Of head `head` in row t, the first of what its decays are made of, or of their gradients.
template <class Real>
Real* delta_steps(const Tensor& a, const DeltaRuleSizes& sizes, int64_t t, int64_t head) {
  return a.rows_data<Real>() + t * a.stride() + head * sizes.decays;
}
// Head `head` of row t, with what its normed rows, decays and steps are put into.
template <class Real>
struct DeltaTokenRoom {
  Real *q, *k;         // [K]
  Real *decay, *step;  // [decays]
};
template <class Real, class Args>
DeltaToken<Real> delta_token(const Args& args, const DeltaRuleSizes& sizes, int64_t t, int64_t head,
                             const DeltaTokenRoom<Real>& room) {
  const int64_t group = head / sizes.group_size();
  delta_norm(delta_row<Real>(args.q, t, group), sizes.key_dim, delta_scale<Real>(sizes), room.q);
  delta_norm(delta_row<Real>(args.k, t, group), sizes.key_dim, Real{1}, room.k);
  delta_decays(delta_steps<Real>(args.a, sizes, t, head), args.dt_bias.template data<Real>() + head * sizes.decays,
               args.a_log.template data<Real>()[head], sizes.decays, room.decay, room.step);
  return {.q = room.q,
          .k = room.k,
          .v = delta_row<Real>(args.v, t, head),
          .decay = room.decay,
          .beta = delta_beta(args.b.template rows_data<Real>()[t * args.b.stride() + head]),
          .decays = sizes.decays};
}

}  // namespace nmoe::cpu
