// The arithmetic of AdamW (ops/contracts/optimizer.h) for host and device: fused where it says so, and written so that
// no compiler fuses anything else. Every device gets the same bits.
//
// Moments in BF16 are rounded at random (stochastic rounding: Gupta et al., arXiv 1502.02551, section 3.1): up with the
// probability of the way from the lower neighbour to the upper one, so that the mean over the random bits is the value
// itself. To nearest they would stand still: v = beta2 * v + (1 - beta2) * g^2 moves by a share (1 - beta2) *
// |g^2 / v - 1| of itself, and BF16's neighbours are 2^-8 to 2^-7 of it apart; with beta2 = 0.999 a v beyond g^2 never
// falls. Rounded at random, both moments stay what they would be in F32 in the mean, since they are linear in what was
// rounded. What remains is noise: a step's has a variance of p * (1 - p) * ulp^2 for a way p, which is about
// (1 - beta2) * v / ulp where g^2 is near v, so that the sum over all steps, 1 / (1 - beta2^2) of it, is ulp * v / 2
// at most or so, whatever beta2 is: 4 to 6 % of v, 2 to 3 % of its root.
//
// A step itself takes the moments as they are before they are rounded.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "tensor/low_precision.h"

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

// The random bits of elements 8 * group to 8 * group + 7 of a tensor, and the 16 of element `index` in them. Its second
// moment has the same with their bytes exchanged: each moment's are uniform, and which way it goes is decided by the
// upper byte nearly always.
NMOE_HOST_DEVICE inline random::Words rounding_words(uint64_t key, uint64_t stream, int64_t group) {
  return rounding_bytes(key, stream, static_cast<uint64_t>(group));
}
NMOE_HOST_DEVICE inline uint32_t first_bits(const random::Words& words, int index) {
  return words.word[index / 2] >> (16 * (index % 2)) & 0xFFFFU;
}
NMOE_HOST_DEVICE inline uint32_t second_bits(uint32_t first) { return (first << 8 | first >> 8) & 0xFFFFU; }

// The bits of x, of which the upper 16 are x in BF16, rounded at random by 16 bits. What is not finite stays as it is;
// beyond BF16's largest number infinity is the upper neighbour.
NMOE_HOST_DEVICE inline uint32_t to_bf16(float x, uint32_t random) {
  const uint32_t bits = low_precision::bits_of(x);
  return bits + ((bits & low_precision::kInfinity) == low_precision::kInfinity ? 0U : random);
}

}  // namespace nmoe::adamw
