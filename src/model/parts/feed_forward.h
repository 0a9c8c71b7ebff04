// FeedForward: the part of a layer that processes each position separately. T tokens, D model width.
//
// A kind is a class derived from FeedForward, made in feed_forward.cpp, with the weights that model/spec/<kind>.h
// describes.
#pragma once

#include <memory>

#include "model/application.h"
#include "model/pass.h"
#include "model/spec/part.h"
#include "model/weight.h"

namespace nmoe {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // y [T, D] = residual [T, D], which may be y, plus the output for x [T, D] (normed). Returns what backward needs
  // besides x.
  virtual Application forward(const Pass& pass, const CodedRows& x, Tensor residual, Tensor y) const = 0;
  // The same for generation: no backward can follow.
  virtual void cached_forward(const Pass& pass, Tensor x, Tensor residual, Tensor y) const {
    forward(pass, x, residual, y);
  }
  // Of that application, for the same x: dx [T, D] =; dy [T, D] is not changed.
  virtual void backward(const Pass& pass, const Application& of, Tensor x, const CodedRows& dy, Tensor dx) const = 0;
  // Whether codes of x and dy are used.
  virtual bool takes_codes() const = 0;
};

// Makes the part, with the weights that describe_part named (model/spec/part_kinds.h). `weights` must outlive it.
std::unique_ptr<FeedForward> make_feed_forward(const LayerPart& part, WeightSet& weights);

}  // namespace nmoe
