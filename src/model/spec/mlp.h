// What an MLP (model/parts/mlp.h) consists of. F hidden width, W = 2F for SwiGLU (gate | up) or F.
#pragma once

#include <string>

#include "model/spec/part.h"
#include "model/spec/weights.h"

namespace nmoe {

// W, the output width of the first layer for `hidden` hidden units.
inline int64_t pre_activation_width(Activation activation, int64_t hidden) {
  return activation_parts(activation) * hidden;
}

// The first layer's weight [W, width]: of one matrix, or of two, gate and up.
WeightSpec pre_activation_weight(const WeightList& weights, const std::string& name, Activation activation,
                                 int64_t width, int64_t hidden);

// An MLP from and to vectors of `width`. `prefix`: of its weights' names.
void describe_mlp(const std::string& prefix, Activation activation, int64_t width, int64_t hidden, WeightList& weights);

// A layer's dense MLP.
PartTraits describe_dense(const LayerPart& part, WeightList& weights);

}  // namespace nmoe
