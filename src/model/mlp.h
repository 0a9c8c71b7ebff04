// A gated (SwiGLU, arXiv 2002.05202) or squared-ReLU (arXiv 2109.08668) two-layer MLP.
//
// T tokens, D model width, F hidden width, W = 2F for SwiGLU (gate | up) or F.
#pragma once

#include "config/config.h"
#include "model/parameters.h"
#include "model/pass.h"

namespace nmoe {

// How many values per hidden unit the first layer makes.
inline int64_t pre_activation_width(Activation activation, int64_t hidden) {
  return activation == Activation::kSwiGlu ? 2 * hidden : hidden;
}

// A feed-forward half of a block: dense or mixture of experts.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x [T, D] (normed), y [T, D] +=
  virtual void forward(const Pass& pass, Tensor x, Tensor y) = 0;
  // dy [T, D] is left alone, dx [T, D] =
  virtual void backward(const Pass& pass, Tensor dy, Tensor dx) = 0;
};

class Mlp final : public FeedForward {
 public:
  Mlp(const ModelConfig& config, ParameterSet& parameters, const std::string& name, int64_t hidden);

  void forward(const Pass& pass, Tensor x, Tensor y) override;
  void backward(const Pass& pass, Tensor dy, Tensor dx) override;

 private:
  struct Saved {
    Tensor x;       // [T, D]
    Tensor pre;     // [T, W]
    Tensor hidden;  // [T, F]
  };

  Activation activation_;
  std::string name_;
  int64_t hidden_;
  Parameter& w_in_;   // [W, D]
  Parameter& w_out_;  // [D, F]
  Saved saved_;
};

}  // namespace nmoe
