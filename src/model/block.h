// One transformer layer, pre-norm: x + mixer(norm(x)), then + feed-forward(norm(.)).
#pragma once

#include <memory>

#include "model/parts/feed_forward.h"
#include "model/parts/mixer.h"
#include "model/parts/moe.h"
#include "model/parts/norm.h"

namespace nmoe {

class Block {
 public:
  // Over the weights described for the layer, whose configuration must outlive it.
  Block(const Layer& layer, WeightSet& weights);

  // x [T, D] must live until backward (pass.recompute determines what else is kept). Returns the block's output, [T, D]
  // on the activation stack.
  Tensor forward(const Pass& pass, Tensor x);
  // The same with a cache of earlier tokens (model/parts/mixer.h); x becomes the output.
  void cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots);
  // dx [T, D]: on entry the gradient of the output, with its codes if there are any; on return that of the input, with
  // its codes in pass.gradient_codes if `leaves_codes`.
  void backward(const Pass& pass, const CodedRows& dx, bool leaves_codes);
  // Whether codes of the output's gradient are used.
  bool takes_codes() const { return feed_forward_->takes_codes(); }

  Moe* moe() const { return dynamic_cast<Moe*>(feed_forward_.get()); }  // null in a dense layer

 private:
  // x + mixer(norm(x)), where mix(normed, mixed) adds to `mixed`.
  template <class Mix>
  Tensor run_mixer(const Pass& pass, Tensor x, const Mix& mix);
  // mixed + feed-forward(norm(mixed))
  Tensor run_feed_forward(const Pass& pass, Tensor mixed);
  Tensor run(const Pass& pass, Tensor x);
  // Backward of the last run().
  void run_backward(const Pass& pass, const CodedRows& dx, bool leaves_codes);

  int64_t layer_;
  Norm mixer_norm_;
  std::unique_ptr<Mixer> mixer_;
  size_t first_feed_forward_;  // index of the first weight after the mixer's
  Norm feed_forward_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
  Tensor input_;  // [T, D]
};

}  // namespace nmoe
