// FeedForward: the part of a layer that works on each position for itself. T tokens, D model width.
//
// A kind is a class derived from FeedForward and a function that describes its weights, both in one file pair, named in
// feed_forward.cpp.
#pragma once

#include <memory>

#include "model/pass.h"
#include "model/spec.h"
#include "model/weight.h"

namespace nmoe {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x [T, D] (normed), y [T, D] = residual [T, D], which may be y, and what x becomes
  virtual void forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) = 0;
  // The same for generation: no backward can follow.
  virtual void cached_forward(const Pass& pass, Tensor x, Tensor residual, Tensor y) { forward(pass, x, residual, y); }
  // dy [T, D] is left alone, dx [T, D] =
  virtual void backward(const Pass& pass, const CodedRows& dy, Tensor dx) = 0;
  // Whether codes of x and dy are of use.
  virtual bool takes_codes() const = 0;
};

// Adds the weights of a layer's feed-forward part.
void describe_feed_forward(const Layer& layer, WeightList& weights);
// That part itself, over the weights which describe_feed_forward named. The layer's configuration and `weights` must
// outlive it.
std::unique_ptr<FeedForward> make_feed_forward(const Layer& layer, WeightSet& weights);

}  // namespace nmoe
