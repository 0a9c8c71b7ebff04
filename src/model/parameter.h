// What is trained of a weight: its value, the rest of its master, and its gradient.
//
// In a step, the first operation that produces the gradient writes it (=) and all later ones add to it (+=): those of
// further microbatches, and of further uses, as by a tied head. Which of the two an operation does is decided when it
// is enqueued, and recordings keep it, so every step has to produce gradients in the same order. A step begins with
// begin_step().
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <utility>

#include "ops/ops.h"
#include "tensor/arena.h"

namespace nmoe {

class Parameter {
 public:
  Tensor value;    // act, or stat where the spec says so
  Tensor low;      // i16, rest of the master (ops/ops.h) of what this rank updates; undefined: value is stat
  Tensor grad;     // stat, or BF16 (GradientSum), like value; undefined for buffers
  Tensor total;    // as grad: the gradient of what this rank updates, summed over the ranks; may be a view of grad
  Tensor squares;  // of the experts' gradient, as GroupedLinearBackwardWeight leaves them; undefined: not kept

  void begin_step() { has_grad_ = false; }
  // Whether this step has written the gradient.
  bool has_grad() const { return has_grad_; }
  // For an operation that can either write the gradient or add to it: whether it has to add. To be called once for each
  // such operation.
  bool accumulate_grad() { return std::exchange(has_grad_, true); }
  // For an operation that can only add: the gradient, set to zero first if nothing has written it in this step.
  Tensor grad_to_add_to(Ops& ops) {
    if (!accumulate_grad()) ops.fill({.x = grad, .value = 0.0});
    return grad;
  }
  // Room for values that are read before the gradient is first written: its memory, where nothing has written it yet in
  // this step and it is large enough, else the arena's.
  Tensor room_before_grad(Arena& arena, DType dtype, const Shape& shape) const {
    const Tensor room(grad.raw(), dtype, shape);
    return !has_grad_ && room.num_bytes() <= grad.num_bytes() ? room : arena.allocate(dtype, shape);
  }

 private:
  bool has_grad_ = false;
};

}  // namespace nmoe
