// One transformer layer, pre-norm: x + mixer(norm(x)), then + feed-forward(norm(.)).
#pragma once

#include <memory>
#include <span>

#include "model/parts/feed_forward.h"
#include "model/parts/mixer.h"
#include "model/parts/moe.h"
#include "model/parts/norm.h"

namespace nmoe {

class Block {
 public:
  // Over the weights described for the parts of a layer, a mixer and a feed-forward part, whose configuration must
  // outlive it.
  Block(std::span<const LayerPart> parts, WeightSet& weights);

  // What one application keeps for its backward.
  struct Kept {
    Tensor input;  // [T, D]
    Norm::Kept mixer_norm;
    Tensor mixer_x;  // [T, D], normed
    Application mixer;
    Norm::Kept feed_forward_norm;
    Tensor feed_forward_x;  // [T, D], normed
    Application feed_forward;
  };

  // x [T, D] must live until backward (pass.recompute determines what else is kept); kept =. Returns the block's
  // output, [T, D] on the activation stack.
  Tensor forward(const Pass& pass, Tensor x, Kept& kept) const;
  // The same with the states of earlier tokens, of each of its parts (model/parts/mixer.h); x becomes the output.
  void cached_forward(const Pass& pass, Tensor x, std::span<const PartStates> states, Tensor slots) const;
  // Of an application. dx [T, D]: on entry the gradient of the output, with its codes if there are any; on return that
  // of the input, with its codes in pass.gradient_codes if `leaves_codes`.
  void backward(const Pass& pass, const Kept& kept, const CodedRows& dx, bool leaves_codes) const;
  // Whether codes of the output's gradient are used.
  bool takes_codes() const { return feed_forward_->takes_codes(); }

  Moe* moe() const { return dynamic_cast<Moe*>(feed_forward_.get()); }  // null in a dense layer

 private:
  // x + mixer(norm(x)), where mix(normed, mixed) adds to `mixed`.
  template <class Mix>
  Tensor run_mixer(const Pass& pass, Tensor x, Kept& kept, const Mix& mix) const;
  // mixed + feed-forward(norm(mixed))
  Tensor run_feed_forward(const Pass& pass, Tensor mixed, Kept& kept) const;
  Tensor run(const Pass& pass, Tensor x, Kept& kept) const;
  // Backward of a run().
  void run_backward(const Pass& pass, const Kept& kept, const CodedRows& dx, bool leaves_codes) const;

  int64_t layer_;
  WeightSet& weights_;
  WeightRange mixer_weights_, feed_forward_weights_;  // norms included
  Norm mixer_norm_;
  std::unique_ptr<Mixer> mixer_;
  Norm feed_forward_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace nmoe
