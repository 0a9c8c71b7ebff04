// A module of multi-token prediction: from the state that predicts the token k further to the one that predicts the
// token k + 1 further. DeepSeek-V3 (arXiv 2412.19437, section 2.2, equations 21 to 23), with what its published code
// and Megatron-Core add: h^0 is behind the model's final norm, embeddings come first, and each depth has a norm of its
// own before the head.
//
//   u_i = A norm(e_{i+k}) + B norm(h_i^{k-1})     e the embedding of the token k further, k = 1, 2, ...
//   h^k = final_norm(layers(u))                   to the model's head: the token k + 1 further, and to the next depth
//
// Published files have A and B as the columns of one matrix. Here the product with A comes first, rounded to act, and
// the one with B is added to it.
//
// T tokens of a microbatch, D model width.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/block.h"
#include "model/parts/linear.h"
#include "model/parts/norm.h"
#include "model/weight_set.h"

namespace nmoe {

class PredictionModule {
 public:
  // Over the weights described for module `module`, whose layers have these parts; both must outlive it. Parts that
  // route tokens to experts are added to `routing`.
  PredictionModule(int64_t module, std::span<const std::vector<LayerPart>> layers, WeightSet& weights,
                   std::vector<Moe*>& routing);

  // What one application keeps for its backward.
  struct Kept {
    Norm::Kept embedding_norm, hidden_norm, final_norm;
    KeptRows embedded, hidden;  // [T, D], normed
    std::vector<Block::Kept> blocks;
    Tensor out;  // [T, D] h^k
  };

  // tokens [T] i32: those k further; hidden [T, D]: h^{k-1}, which must live until backward. `room` [T, D]: memory that
  // is free. kept =; what waits is on the activation stack.
  void forward(const Pass& pass, Weight& embedding, Tensor tokens, Tensor hidden, Tensor room, Kept& kept) const;
  // The same in generation, with the states of the parts of its layers: `hidden` [T, D] is h^{k-1} and becomes h^k. A
  // row sees those of its slot's sequence before it that were run here, at whatever depth.
  void cached_forward(const Pass& pass, const Weight& embedding, Tensor tokens, Tensor hidden,
                      std::span<const PartStates> states, Tensor slots) const;
  // Of an application. dout [T, D]: the gradient of h^k on entry, overwritten. dhidden [T, D] += that of h^{k-1};
  // undefined: not wanted. The embedding's gradient likewise; null: not wanted.
  void backward(const Pass& pass, const Kept& kept, Weight* embedding, Tensor tokens, Tensor dout,
                Tensor dhidden) const;

  int64_t last_layer() const { return last_layer_; }  // its number

 private:
  // A norm with the product of what it gives.
  struct Input {
    Norm norm;
    Linear projection;
  };
  // dx [T, D] = the gradient of the norm's input, += with `accumulate`; undefined: not wanted. The weights' gradients
  // likewise.
  static void backward_input(const Pass& pass, const Input& input, const Norm::Kept& norm, const KeptRows& normed,
                             Tensor dy, Tensor dx, bool accumulate);

  WeightSet& weights_;
  WeightRange inputs_range_, final_norm_range_;
  Input embedding_, hidden_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<size_t> num_parts_;  // of each
  Norm final_norm_;
  int64_t first_layer_, last_layer_;
};

}  // namespace nmoe
