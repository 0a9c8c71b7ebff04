// RMSNorm with a learned gain.
//
// Threads: driven by the one that drives the device (ops/device.h). The WeightSet
// whose weights they name must outlive them.
#pragma once

#include "model/pass.h"
#include "model/weight.h"

namespace nmoe {

class Norm {
 public:
  // The gain of that name (WeightList::gain); normalises vectors of its length.
  Norm(WeightSet& weights, std::string_view name, double eps) : gain_(weights.at(name)), eps_(eps) {}

  // What one application keeps for backward.
  struct Kept {
    Tensor x;     // as in forward
    Tensor rstd;  // [N] stat, N vectors
  };

  // x [T, dim] or [T, heads, dim] -> y =, same shape; rows may lie apart. y_codes: = y's, if defined.
  Kept forward(const Pass& pass, Tensor x, Tensor y, const RowCodes& y_codes = {}) const {
    const Kept kept{.x = x, .rstd = pass.push_stat({norm_vectors(x)})};
    normalise(pass, kept, y, y_codes);
    return kept;
  }

  // y = once more, with the same bits.
  void forward_again(const Pass& pass, const Kept& kept, Tensor y) const { normalise(pass, kept, y, {}); }

  const Weight& gain() const { return gain_; }
  double eps() const { return eps_; }

  // dx = or, with accumulate, +=. dx may be the storage of dy. dx_codes: = dx's, if defined.
  void backward(const Pass& pass, const Kept& kept, Tensor dy, Tensor dx, bool accumulate = false,
                const RowCodes& dx_codes = {}) const {
    pass.ops.rms_norm_backward({.x = kept.x,
                                .gain = gain_.value,
                                .rstd = kept.rstd,
                                .dy = dy,
                                .dx = dx,
                                .dgain = gain_.grad_to_add_to(pass.ops),
                                .accumulate_dx = accumulate,
                                .dx_codes = dx_codes});
  }

 private:
  void normalise(const Pass& pass, const Kept& kept, Tensor y, const RowCodes& y_codes) const {
    pass.ops.rms_norm_forward(
        {.x = kept.x, .gain = gain_.value, .eps = eps_, .y = y, .rstd = kept.rstd, .y_codes = y_codes});
  }

  Weight& gain_;
  double eps_;
};

}  // namespace nmoe
