// One layer of a model: its parts, one after the other, each added to the residual stream.
//
// T tokens, D width of the stream.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/residual_branch.h"

namespace nmoe {

// Memory for a block's output, [T, D]; asked for when the write is what is enqueued next.
using OutputPlace = std::function<Tensor()>;

class Block {
 public:
  // Over the weights described for the parts of a layer, whose configuration must outlive it. Parts that route tokens
  // to experts are added to `routing`.
  Block(std::span<const LayerPart> parts, WeightSet& weights, std::vector<Moe*>& routing);

  // What one application keeps for its backward.
  struct Kept {
    Tensor input;  // [T, D]
    std::vector<ResidualBranch::Kept> branches;
  };

  // x [T, D] must live until backward, or be in kept.input again by then (pass.keep determines what else does); kept =.
  // Returns the block's output, [T, D] on the activation stack or, of a block of which nothing else waits, where
  // `place` says.
  Tensor forward(const Pass& pass, Tensor x, Kept& kept, const OutputPlace& place = {}) const;
  // The same in generation (model/parts/part.h), with the states of each part: x becomes the output. `room` [T, D], of
  // which x and it may change places.
  void cached_forward(const Pass& pass, Tensor& x, Tensor& room, std::span<const PartStates> states,
                      Tensor slots) const;
  // Of an application. dx [T, D]: on entry the gradient of the output, quantised or not; on return that of the input,
  // quantised as well, in pass.keep's memory, if `leaves_codes`.
  void backward(const Pass& pass, const Kept& kept, const Rows& dx, bool leaves_codes) const;
  // Whether the output's gradient is read in FP8.
  bool takes_codes(const Ops& ops) const { return branches_.back().takes_codes(ops); }

 private:
  Tensor run(const Pass& pass, Tensor x, Kept& kept) const;
  // Backward of a run().
  void run_backward(const Pass& pass, const Kept& kept, const Rows& dx, bool leaves_codes) const;

  WeightSet& weights_;
  std::vector<ResidualBranch> branches_;
};

}  // namespace nmoe
