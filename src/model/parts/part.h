// Part: what layers are made of; the interface of its kinds. T tokens, D model width.
//
// A kind is a class derived from Part, made in part_kinds.cpp, with the weights that model/spec/<kind>.h describes.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include "model/application.h"
#include "model/pass.h"
#include "model/states.h"

namespace nmoe {

class Part {
 public:
  virtual ~Part() = default;
  // y [T, D] = residual [T, D], which may be y, plus the output for x [T, D] (normed). Returns what backward needs
  // besides x.
  virtual Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const = 0;
  // Of that application, for the same x: dx [T, D] =; dy [T, D] is not changed.
  virtual void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const = 0;
  // As forward, in generation: each row is added to the states of its slot and sees what they hold by then
  // (CachedRows), if the part keeps any. No backward can follow. slots [T] i32; positions are the batch's.
  virtual void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                              Tensor y) const = 0;
  // Whether codes of x and dy are used.
  virtual bool takes_codes(const Ops& ops) const = 0;
};

}  // namespace nmoe
