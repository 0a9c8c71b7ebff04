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

  // x [T, dim] or [T, heads, dim] -> y =, same shape; rows may lie apart. Keeps a reference to x and one number per
  // vector. y_codes: = y's, if defined.
  void forward(const Pass& pass, Tensor x, Tensor y, const RowCodes& y_codes = {}) {
    saved_.x = x;
    saved_.rstd = pass.push_stat({norm_vectors(x)});
    normalise(pass, y, y_codes);
  }

  // y = once more, with the same bits.
  void forward_again(const Pass& pass, Tensor y) { normalise(pass, y, {}); }

  const Weight& gain() const { return gain_; }
  double eps() const { return eps_; }

  // dx = or, with accumulate, +=. dx may be the storage of dy. dx_codes: = dx's, if defined.
  void backward(const Pass& pass, Tensor dy, Tensor dx, bool accumulate = false, const RowCodes& dx_codes = {}) {
    pass.ops.rms_norm_backward({.x = saved_.x,
                                .gain = gain_.value,
                                .rstd = saved_.rstd,
                                .dy = dy,
                                .dx = dx,
                                .dgain = gain_.grad_to_add_to(pass.ops),
                                .accumulate_dx = accumulate,
                                .dx_codes = dx_codes});
  }

 private:
  struct Saved {
    Tensor x;     // as in forward
    Tensor rstd;  // [N] stat
  };

  void normalise(const Pass& pass, Tensor y, const RowCodes& y_codes) const {
    pass.ops.rms_norm_forward(
        {.x = saved_.x, .gain = gain_.value, .eps = eps_, .y = y, .rstd = saved_.rstd, .y_codes = y_codes});
  }

  Weight& gain_;
  double eps_;
  Saved saved_;
};

}  // namespace nmoe
