// Activation functions of MLPs and experts. SwiGLU (arXiv 2002.05202): pre = [N, 2F] (gate | up), h = silu(gate) * up.
// Squared ReLU (arXiv 2109.08668): pre = [N, F], h = max(pre, 0)^2. Clamped SwiGLU (gpt-oss, arXiv 2508.10925; alpha
// and limit as in its release): pre = [N, 2F] (gate | up), with g = min(gate, limit) and u = up within +-limit,
// h = (u + 1) g sigmoid(alpha g). What is beyond the limit has no gradient, the limit itself has.
//
// With row_weight defined, row n of h is multiplied by row_weight[n]: the gate weight of a routed row. N is a capacity:
// with num_rows defined, rows from num_rows on are neither read nor written.
#pragma once

#include "base/kinds.h"
#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

constexpr double kSwiGluAlpha = 1.702, kSwiGluLimit = 7.0;  // of clamped SwiGLU

struct ActivationForward {
  Activation kind = Activation::kSwiGlu;
  Tensor pre;             // [N, 2F], or [N, F] of squared ReLU
  Tensor row_weight;      // [N] stat; undefined: 1
  Tensor h;               // = [N, F]
  Tensor num_rows;        // [1] i32; undefined: N
  RowCodes h_codes = {};  // = h in FP8; undefined: not wanted
  // = h's columns in FP8, in groups of rows given by offsets [G + 1] i32; undefined: not wanted. If wanted, h and
  // h_codes need not be written and may be undefined.
  ColumnCodes h_columns = {};
  Tensor offsets = {};
  bool keeps_h = true;      // false, only with h_codes: the values of h are undefined afterwards
  RowCodes pre_codes = {};  // = pre in FP8; undefined: not wanted; never with h_columns
};
struct ActivationBackward {
  Activation kind = Activation::kSwiGlu;
  Tensor pre, row_weight;    // as in forward
  Tensor dh;                 // [N, F]
  Tensor dpre;               // = like pre; may be the storage of pre
  Tensor drow_weight;        // = [N] stat; undefined when row_weight is
  Tensor num_rows;           // as in forward
  RowCodes dpre_codes = {};  // = dpre in FP8; undefined: not wanted
  Tensor h = {};             // = [N, F], what forward makes of pre; undefined: not wanted
  // [N, 2F] or [N, F]; defined: pre is what these stand for, its memory has no values yet and none afterwards, but dpre
  // if that is there.
  RowCodes pre_codes = {};
};

// A gate: y = x * s(gate), s(g) = sigmoid(g) or g sigmoid(g). T rows of W values.
enum class GateFunction { kSigmoid, kSilu };
struct GateForward {
  GateFunction function = GateFunction::kSigmoid;
  Tensor x;     // [T, W]
  Tensor gate;  // [T, W], apart
  Tensor y;     // = [T, W]
};
struct GateBackward {
  GateFunction function = GateFunction::kSigmoid;
  Tensor x, gate;  // as in forward
  Tensor dy;       // [T, W]
  Tensor dx;       // = [T, W]; may be the storage of dy
  Tensor dgate;    // = [T, W], apart
};

}  // namespace nmoe
