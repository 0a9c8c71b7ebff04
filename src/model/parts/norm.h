// RMSNorm with a learned gain.
//
// Threads: driven by the one that drives the device (ops/device.h). The WeightSet
// whose weights they name must outlive them.
#pragma once

#include "model/pass.h"
#include "model/weight_set.h"

namespace nmoe {

class Norm {
 public:
  // The gain of that name (WeightList::gain or norm_gain); normalises vectors of its length.
  Norm(WeightSet& weights, std::string_view name, double eps) : gain_(weights.at(name)), eps_(eps) {}

  // What one application keeps for backward.
  struct Kept {
    Tensor x;     // as in forward
    Tensor rstd;  // [N] stat, N vectors
  };

  // x [T, dim] or [T, heads, dim] -> y =, same shape; rows may lie apart. Quantised as well if y has memory for it.
  Kept forward(const Pass& pass, Tensor x, const Rows& y) const {
    const Kept kept{.x = x, .rstd = pass.push_stat({norm_vectors(x)})};
    normalise(pass, kept, y);
    return kept;
  }

  // y = once more, with the same bits.
  void forward_again(const Pass& pass, const Kept& kept, Tensor y) const { normalise(pass, kept, y); }

  const Weight& gain() const { return gain_; }
  double eps() const { return eps_; }

  // dx = or, with accumulate, +=; quantised as well if it has memory for it. dx may be the storage of dy.
  void backward(const Pass& pass, const Kept& kept, Tensor dy, const Rows& dx, bool accumulate = false) const {
    pass.ops.rms_norm_backward({.x = kept.x,
                                .gain = gain_.value,
                                .rstd = kept.rstd,
                                .dy = dy,
                                .dx = dx.tensor(),
                                .dgain = gain_.grad_to_add_to(pass.ops),
                                .accumulate_dx = accumulate,
                                .dx_codes = dx.quantised,
                                .gain_offset = gain_.spec.gain_offset});
  }

 private:
  void normalise(const Pass& pass, const Kept& kept, const Rows& y) const {
    pass.ops.rms_norm_forward({.x = kept.x,
                               .gain = gain_.value,
                               .eps = eps_,
                               .y = y.tensor(),
                               .rstd = kept.rstd,
                               .y_codes = y.quantised,
                               .gain_offset = gain_.spec.gain_offset});
  }

  Weight& gain_;
  double eps_;
};

}  // namespace nmoe
