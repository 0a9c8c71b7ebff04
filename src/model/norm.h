// RMSNorm with a learned gain.
//
// Threads: driven by the one that drives the device (ops/device.h). The WeightSet whose weights they name outlives
// them.
#pragma once

#include "model/pass.h"
#include "model/weight.h"

namespace nmoe {

class Norm {
 public:
  // The gain of that name (WeightList::gain); normalises vectors as long as it.
  Norm(WeightSet& weights, std::string_view name, double eps) : gain_(weights.at(name)), eps_(eps) {}

  // x [..., dim] -> y =, same shape. Keeps a reference to x and one number a vector.
  void forward(const Pass& pass, Tensor x, Tensor y) {
    const int64_t dim = gain_.spec.shape[0];
    const int64_t num_vectors = x.num_elements() / dim;
    saved_.x = x.reshape({num_vectors, dim});
    saved_.rstd = pass.push_stat({num_vectors});
    normalise(pass, y);
  }

  // y = once more, to the same bits.
  void forward_again(const Pass& pass, Tensor y) { normalise(pass, y); }

  // dx = or, with accumulate, +=. dx may be the storage of dy.
  void backward(const Pass& pass, Tensor dy, Tensor dx, bool accumulate = false) {
    const Shape shape = saved_.x.shape();
    pass.ops.rms_norm_backward({.x = saved_.x,
                                .gain = gain_.value,
                                .rstd = saved_.rstd,
                                .dy = dy.reshape(shape),
                                .dx = dx.reshape(shape),
                                .dgain = gain_.grad_to_add_to(pass.ops),
                                .accumulate_dx = accumulate});
  }

 private:
  struct Saved {
    Tensor x;     // [N, dim]
    Tensor rstd;  // [N] stat
  };

  void normalise(const Pass& pass, Tensor y) const {
    pass.ops.rms_norm_forward(
        {.x = saved_.x, .gain = gain_.value, .eps = eps_, .y = y.reshape(saved_.x.shape()), .rstd = saved_.rstd});
  }

  Weight& gain_;
  double eps_;
  Saved saved_;
};

}  // namespace nmoe
