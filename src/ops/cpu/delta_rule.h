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

// What a token and a head's parameters make of its state.
template <class Real>
struct DeltaGates {
  Real decay, beta;
  Real step;  // softplus(a + dt_bias)
};
template <class Real>
DeltaGates<Real> delta_gates(Real a, Real b, Real dt_bias, Real a_log);

// A token of a head.
template <class Real>
struct DeltaToken {
  const Real *q, *k;  // [K], normed
  const Real* v;      // [V]
  DeltaGates<Real> gates;
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
// Gates of head `head` of row t.
template <class Real, class Args>
DeltaGates<Real> delta_gates_of(const Args& args, int64_t t, int64_t head) {
  return delta_gates(args.a.template rows_data<Real>()[t * args.a.stride() + head],
                     args.b.template rows_data<Real>()[t * args.b.stride() + head],
                     args.dt_bias.template data<Real>()[head], args.a_log.template data<Real>()[head]);
}

}  // namespace nmoe::cpu
