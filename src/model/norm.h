// RMSNorm with a learned gain.
#pragma once

#include "model/parameters.h"
#include "model/pass.h"

namespace nmoe {

class Norm {
 public:
  // Normalises vectors of `dim`.
  Norm(ParameterSet& parameters, const std::string& name, int64_t dim, double eps)
      : gain_(parameters.add({.name = name,
                              .shape = {dim},
                              .group = ParameterGroup::kRest,
                              .decay = false,
                              .is_stat = true,
                              .init = InitKind::kOnes})),
        eps_(eps) {}

  // x [..., dim] -> y =, same shape. Keeps a reference to x and one number a vector.
  void forward(const Pass& pass, Tensor x, Tensor y) {
    const int64_t dim = gain_.shape[0];
    const int64_t num_vectors = x.num_elements() / dim;
    saved_.x = x.reshape({num_vectors, dim});
    saved_.rstd = pass.push_stat({num_vectors});
    pass.ops.rms_norm_forward({saved_.x, gain_.value, eps_, y.reshape({num_vectors, dim}), saved_.rstd});
  }

  // y = once more, to the same bits.
  void forward_again(const Pass& pass, Tensor y) {
    pass.ops.rms_norm_forward({saved_.x, gain_.value, eps_, y.reshape(saved_.x.shape()), saved_.rstd});
  }

  // dx = or, with accumulate, +=. dx may be the storage of dy.
  void backward(const Pass& pass, Tensor dy, Tensor dx, bool accumulate = false) {
    const Shape shape = saved_.x.shape();
    pass.ops.rms_norm_backward(
        {saved_.x, gain_.value, saved_.rstd, dy.reshape(shape), dx.reshape(shape), gain_.grad, accumulate});
  }

 private:
  struct Saved {
    Tensor x;     // [N, dim]
    Tensor rstd;  // [N] stat
  };

  Parameter& gain_;
  double eps_;
  Saved saved_;
};

}  // namespace nmoe
