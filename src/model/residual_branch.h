// A part of a layer with its norm and its way into the residual stream, pre-norm: x + part(norm(x)).
//
// T tokens, D width of the stream.
#pragma once

#include <memory>
#include <vector>

#include "model/parts/norm.h"
#include "model/parts/part.h"
#include "model/spec/part.h"
#include "model/weight_set.h"

namespace nmoe {

class Moe;

class ResidualBranch {
 public:
  // As make_part (model/parts/part_kinds.h).
  ResidualBranch(const LayerPart& part, WeightSet& weights, std::vector<Moe*>& routing);

  // What one application keeps for its backward.
  struct Kept {
    Norm::Kept norm;
    KeptRows normed;  // [T, D]
    Application part;
  };

  // Returns x + part(norm(x)), [T, D] on the activation stack; kept =.
  Tensor forward(const Pass& pass, Tensor x, Kept& kept) const;
  // y = x + part(norm(x)), [T, D], in generation (model/parts/part.h). y is not x: their sum is rounded as in forward.
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor y) const;
  // Of an application. dx [T, D]: on entry the gradient of the output, quantised or not; on return that of x, quantised
  // as well, in pass.keep's memory, if `leaves_codes`.
  void backward(const Pass& pass, const Kept& kept, const Rows& dx, bool leaves_codes) const;

  // Whether the output's gradient is read in FP8.
  bool takes_codes(const Ops& ops) const { return part_->takes_codes(ops); }
  bool is_mixer() const { return is_mixer_; }
  const WeightRange& weights() const { return weights_; }  // the norm's and the part's

 private:
  int64_t layer_;
  bool is_mixer_;
  WeightRange weights_;
  Norm norm_;
  std::unique_ptr<Part> part_;
};

}  // namespace nmoe
