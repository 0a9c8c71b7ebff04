// Dense and grouped linear layers. Weights are [out, in]. Letters and conventions: ops/ops.h.
#pragma once

#include "base/kinds.h"
#include "tensor/tensor.h"

namespace nmoe {

// y = x w^T, or addend + x w^T
struct LinearForward {
  Tensor x;       // [T, in]
  Tensor w;       // [out, in]
  Tensor y;       // = [T, out], act or stat
  Tensor addend;  // [T, out] of y's dtype, may be y; undefined: none
};
// dx = dy w
struct LinearBackwardInput {
  Tensor dy;  // [T, out]
  Tensor w;   // [out, in]
  Tensor dx;  // = [T, in]
  bool accumulate = false;
};
// dw = dy^T x
struct LinearBackwardWeight {
  Tensor x;   // [T, in]
  Tensor dy;  // [T, out]
  Tensor dw;  // = [out, in] stat
  bool accumulate = false;
};

// The same over ragged groups of rows: expert e has rows [offsets[e], offsets[e + 1]). R is a capacity: rows from
// offsets[E] on are neither read nor written. An expert without rows is legal; its dw becomes zeros, or stays as it is
// with `accumulate`.
struct GroupedLinearForward {
  Tensor x;        // [R, in]
  Tensor w;        // [E, out, in]
  Tensor offsets;  // [E + 1] i32
  Tensor y;        // = [R, out]
};
// The experts' first layer: pre = x w^T by groups, h = activation(pre) * row_weight (contracts/activation.h).
struct GroupedActivationForward {
  Activation kind = Activation::kSwiGlu;
  Tensor x;           // [R, in]
  Tensor w;           // [E, W, in], W = 2F for SwiGLU (gate | up), else F
  Tensor offsets;     // [E + 1] i32
  Tensor row_weight;  // [R] stat; undefined: 1
  Tensor pre;         // = [R, W]
  Tensor h;           // = [R, F]
};
struct GroupedLinearBackwardInput {
  Tensor dy;       // [R, out]
  Tensor w;        // [E, out, in]
  Tensor offsets;  // [E + 1] i32
  Tensor dx;       // = [R, in]
};
// Through the experts' second layer y = h w^T and the activation in front of it: dh = dy w by groups, and from dh what
// ActivationBackward (contracts/activation.h) makes of it.
struct GroupedActivationBackward {
  Activation kind = Activation::kSwiGlu;
  Tensor dy;               // [R, out]
  Tensor w;                // [E, out, F]
  Tensor offsets;          // [E + 1] i32
  Tensor pre, row_weight;  // [R, W], [R] stat: as in forward
  Tensor dpre;             // = like pre; may be the storage of pre
  Tensor drow_weight;      // = [R] stat; undefined when row_weight is
};
struct GroupedLinearBackwardWeight {
  Tensor x;        // [R, in]
  Tensor dy;       // [R, out]
  Tensor offsets;  // [E + 1] i32
  Tensor dw;       // = [E, out, in] stat
  bool accumulate = false;
};

}  // namespace nmoe
