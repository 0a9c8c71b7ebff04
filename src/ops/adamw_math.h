// The arithmetic of AdamW (ops/contracts/optimizer.h) for host and device: fused where it says so, and written so that
// no compiler fuses anything else. Every device gets the same bits.
//
// Moments in BF16 are rounded at random (ops/moment_rounding.h). To nearest the second would stand still: v = beta2 * v
// + (1 - beta2) * g^2 moves by a share (1 - beta2) * |g^2 / v - 1| of itself; with beta2 = 0.999 a v beyond g^2 never
// falls. What remains is noise: a step's has a variance of p * (1 - p) * ulp^2 for a way p, which is about
// (1 - beta2) * v / ulp where g^2 is near v, so that the sum over all steps, 1 / (1 - beta2^2) of it, is ulp * v / 2
// at most or so, whatever beta2 is: 4 to 6 % of v, 2 to 3 % of its root.
#pragma once

#include <cmath>

#include "base/host_device.h"

namespace nmoe::adamw {

template <class Real>
struct Constants {
  Real beta1, beta2;
  Real gain1, gain2;  // 1 - beta
  Real eps, weight_decay;
};
template <class Real>
struct Rates {
  Real grad_scale, lr;
  Real correction1, correction2;  // 1 / (1 - beta^t)
};

template <class Real>
NMOE_HOST_DEVICE inline void update(const Constants<Real>& c, const Rates<Real>& r, Real grad, Real& m, Real& v,
                                    Real& w) {
  const Real g = grad * r.grad_scale;
  m = std::fma(c.gain1, g, c.beta1 * m);
  v = std::fma(c.beta2, v, c.gain2 * g * g);
  const Real direction = m * r.correction1 / (std::sqrt(v * r.correction2) + c.eps);
  w = std::fma(-r.lr, std::fma(c.weight_decay, w, direction), w);
}

}  // namespace nmoe::adamw
