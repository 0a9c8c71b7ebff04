// One transformer layer, pre-norm: x + attention(norm(x)), then + feed-forward(norm(.)).
#pragma once

#include <memory>
#include <string>

#include "model/attention.h"
#include "model/moe.h"
#include "model/norm.h"

namespace nmoe {

class Block {
 public:
  Block(const ModelConfig& config, ParameterSet& parameters, int64_t layer_idx);

  // x [T, D] stays alive for backward (see pass.recompute for what else does). Returns the block's output, [T, D] on
  // the activation stack.
  Tensor forward(const Pass& pass, Tensor x);
  // The same with attention to a cache (model/attention.h).
  Tensor cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots);
  // dx [T, D]: on entry the gradient of the output, on return that of the input.
  void backward(const Pass& pass, Tensor dx);

  const Attention& attention() const { return *attention_; }
  Moe* moe() const { return moe_; }  // null in a dense layer

 private:
  // x + attention(norm(x)), where attention(normed, attended) adds to `attended`.
  template <class Attend>
  Tensor attend(const Pass& pass, Tensor x, const Attend& attention);
  // attended + feed-forward(norm(attended))
  Tensor feed_forward(const Pass& pass, Tensor attended);
  Tensor run(const Pass& pass, Tensor x);
  // Backward of the last run().
  void run_backward(const Pass& pass, Tensor dx);

  std::string name_;  // "layers.3."
  Norm attention_norm_;
  std::unique_ptr<Attention> attention_;
  Norm mlp_norm_;
  std::unique_ptr<FeedForward> mlp_;
  Moe* moe_ = nullptr;
  Tensor input_;  // [T, D]
};

// The window of a layer: 0 (global) every attn_global_every-th layer and in the last one, else config.window.
int64_t layer_window(const ModelConfig& config, int64_t layer_idx);

}  // namespace nmoe
