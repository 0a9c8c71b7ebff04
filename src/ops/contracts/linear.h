// Dense and grouped linear layers. Weights are [out, in]. Letters and conventions: ops/ops.h.
#pragma once

#include "base/kinds.h"
#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

// What a product rounds its operands to: in blocks along what it sums over, or tiles, as contracts/quantize.h says of
// weights and of others; sums are those of products without rounding.
//
// A gradient of weights sums over tokens: blocks begin anew with each expert. In NVFP4 its operands are transformed in
// 16 tokens each first, and rounded to BF16 (random_hadamard, tensor/low_precision.h), with zeros for tokens that are
// not there. dy alone is rounded at random, where there is a key. The rows of each expert are a tensor, with a scale in
// NVFP4, as each expert's weights are.
//
// Which formats a device takes, and how, Ops::weight_rounding() says. The CPU in F32 takes all, and counts as the
// oracle of other devices. CUDA on Hopper takes kFp8 in BF16: products of codes, of columns for gradients of weights,
// whose sums are promoted to fp32 every 128 of what is summed over. Both sizes of a weight are multiples of 16 there.
// It emulates kMxFp8 and kNvFp4 in BF16: products of operands that were rounded and widened again. Blackwell takes
// those two in BF16, by tensor cores that have them.
//
// Where an operand was rounded before, its codes may come along: to the same as the product would round it to. The
// product takes them then, and the operand's values may be anything.
struct OperandRounding {
  OperandFormat format = OperandFormat::kAct;
  RandomRounding random = {};
  bool transform = true;    // NVFP4, gradients of weights: whether operands are transformed
  WeightCodes weight = {};  // of w
  RowCodes rows = {};       // of x or dy, as their rows lie: where some are picked, so are codes
  // Of operands that hold what they were rounded to but for their tensors' scales, which CUDA's emulation makes: [E]
  // stat, what products are to be multiplied by; dense: [2], behind it 1 where something is added, else 0. With kAct
  // alone.
  Tensor product_scale = {};
};

// How a device's products take weights that are to be rounded.
enum class WeightRounding {
  kNone,    // not at all
  kInside,  // the product rounds them
  kCodes,   // as codes that were made before (OperandRounding::weight)
};

// y = x w^T, or addend + x w^T
struct LinearForward {
  Tensor x;       // [T, in]
  Tensor w;       // [out, in]
  Tensor y;       // = [T, out], act or stat
  Tensor addend;  // [T, out] of y's dtype, may be y; undefined: none
  OperandRounding rounding = {};
};
// An MLP's first layer: pre = x w^T, h = activation(pre) (contracts/activation.h).
struct LinearActivationForward {
  Activation kind = Activation::kSwiGlu;
  Tensor x;               // [T, in]
  Tensor w;               // [W, in], W = 2F for SwiGLU (gate | up), else F
  Tensor pre;             // = [T, W]
  Tensor h;               // = [T, F]
  RowCodes h_codes = {};  // = what h is in FP8; undefined: not wanted
  OperandRounding rounding = {};
};
// dx = dy w
struct LinearBackwardInput {
  Tensor dy;  // [T, out]
  Tensor w;   // [out, in]
  Tensor dx;  // = [T, in]
  bool accumulate = false;
  OperandRounding rounding = {};
};
// dw = dy^T x
struct LinearBackwardWeight {
  Tensor x;   // [T, in]
  Tensor dy;  // [T, out]
  Tensor dw;  // = [out, in] stat
  bool accumulate = false;
  OperandRounding rounding = {};
};

// Rows that an operation reads: as they lie, or picked one by one, so that nobody copies them first.
struct OperandRows {
  Tensor source;      // [N, width]
  Tensor index = {};  // [R] i32: row r is source's row index[r]; undefined: row r

  OperandRows() = default;
  OperandRows(Tensor rows, Tensor picked_by = {}) : source(rows), index(picked_by) {}

  int64_t num_rows() const { return index.defined() ? index.dim(0) : source.dim(0); }
  int64_t width() const { return source.dim(1); }
};

// The same over ragged groups of rows: expert e has rows [offsets[e], offsets[e + 1]). R is a capacity: rows from
// offsets[E] on are neither read nor written. An expert without rows is legal; its dw becomes zeros, or stays as it is
// with `accumulate`.
struct GroupedLinearForward {
  Tensor x;        // [R, in]
  Tensor w;        // [E, out, in]
  Tensor offsets;  // [E + 1] i32
  Tensor y;        // = [R, out]
  OperandRounding rounding = {};
};
// The experts' first layer: pre = x w^T by groups, h = activation(pre) * row_weight (contracts/activation.h).
struct GroupedActivationForward {
  Activation kind = Activation::kSwiGlu;
  OperandRows x;      // [R, in]
  Tensor w;           // [E, W, in], W = 2F for SwiGLU (gate | up), else F
  Tensor offsets;     // [E + 1] i32
  Tensor row_weight;  // [R] stat; undefined: 1
  Tensor pre;         // = [R, W]
  Tensor h;           // = [R, F]
  OperandRounding rounding = {};
  RowCodes h_codes = {};  // = what h is in FP8; undefined: not wanted
  // = what h's columns are in FP8, in groups by offsets; undefined: not wanted. They come with h_codes, and with them h
  // is not written, and may be undefined.
  ColumnCodes h_columns = {};
};
struct GroupedLinearBackwardInput {
  Tensor dy;       // [R, out]
  Tensor w;        // [E, out, in]
  Tensor offsets;  // [E + 1] i32
  Tensor dx;       // = [R, in]
  OperandRounding rounding = {};
};
// Through the experts' second layer y = h w^T and the activation in front of it: dh = dy w by groups, and from dh what
// ActivationBackward (contracts/activation.h) makes of it.
struct GroupedActivationBackward {
  Activation kind = Activation::kSwiGlu;
  OperandRows dy;          // [R, out]
  Tensor w;                // [E, out, F]
  Tensor offsets;          // [E + 1] i32
  Tensor pre, row_weight;  // [R, W], [R] stat: as in forward
  Tensor dpre;             // = like pre; may be the storage of pre
  Tensor drow_weight;      // = [R] stat; undefined when row_weight is
  OperandRounding rounding = {};
  RowCodes dpre_codes = {};  // = what dpre is in FP8; undefined: not wanted
  // = what dpre's columns are in FP8, in groups by offsets; undefined: not wanted. They come with dpre_codes, and with
  // them dpre may hold anything afterwards unless it is to be kept.
  ColumnCodes dpre_columns = {};
  bool keeps_dpre = false;
};
// At most one of x and dy is picked. With codes of its columns, in groups by offsets, x may be undefined, and dy's
// values are not read.
struct GroupedLinearBackwardWeight {
  OperandRows x;   // [R, in]
  OperandRows dy;  // [R, out]
  Tensor offsets;  // [E + 1] i32
  Tensor dw;       // = [E, out, in] stat
  bool accumulate = false;
  OperandRounding rounding = {};
  ColumnCodes x_columns = {}, dy_columns = {};
};

}  // namespace nmoe
