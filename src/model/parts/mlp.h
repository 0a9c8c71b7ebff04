// A gated (SwiGLU, arXiv 2002.05202) or squared-ReLU (arXiv 2109.08668) two-layer MLP.
//
// T tokens, D model width, F hidden width, W = 2F for SwiGLU (gate | up) or F.
#pragma once

#include "model/parts/feed_forward.h"
#include "model/parts/linear.h"

namespace nmoe {

// The output width of the first layer for `hidden` hidden units.
inline int64_t pre_activation_width(Activation activation, int64_t hidden) {
  return activation == Activation::kSwiGlu ? 2 * hidden : hidden;
}

// The first layer's weight [W, D]: of one matrix, or of two, gate and up.
WeightSpec pre_activation_weight(const WeightList& weights, const std::string& name, const ModelConfig& config,
                                 int64_t hidden);

class Mlp final : public FeedForward {
 public:
  // `prefix` is the prefix of its weights' names within the layer: "mlp.".
  static void describe(const Layer& layer, const std::string& prefix, int64_t hidden, WeightList& weights);
  // `hidden_as`: the intermediate as which its hidden units are captured.
  Mlp(const Layer& layer, const std::string& prefix, int64_t hidden, WeightSet& weights, Intermediate hidden_as);

  Application forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const CodedRows& dy, Tensor dx) const override;
  bool takes_codes() const override { return in_.weight().takes_codes(); }

 private:
  struct Kept {
    Tensor pre;          // [T, W]
    RowCodes pre_codes;  // [T, W], if they wait for backward instead of pre
    Tensor hidden;       // [T, F]
  };

  Activation activation_;
  int64_t layer_;
  Intermediate hidden_as_;
  int64_t hidden_;
  Linear in_;   // [W, D]
  Linear out_;  // [D, F]
};

}  // namespace nmoe
