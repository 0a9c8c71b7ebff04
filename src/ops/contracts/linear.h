// Dense and grouped linear layers. Weights are [out, in]. Letters and conventions: ops/ops.h.
//
// Order of sums. On the CPU in F32, an element of any product is made of chains of fused multiply-adds over ascending
// terms, of at most 256, into which the sum is cut evenly (product_piece, ops/cpu/gemm_kernels.h). The first chain is
// added to what the result begins with, 0 or the addend, and every later one to that. It is so for any number of rows,
// grouped or not. On CUDA batch-invariant products have one order for any number of rows. On Hopper, in BF16, it is
// that of all forward products of rows in whole 16 bytes whose operands are not rounded: one chain of instructions of
// 16 consecutive terms, ascending, in F32, to which the addend is added at the end. In F32 it is that of all forward
// products whose operands are not rounded: lane l of 32 has a chain of fused multiply-adds over the terms of the eights
// l, l + 32, l + 64, ..., ascending, lanes are added as a tree, those 16, 8, 4, 2 and 1 apart, and the addend at the
// end. Other kernels have an order each, by shape (docs/arithmetic.md).
#pragma once

#include "base/kinds.h"
#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

// The low precision to which a product first rounds its operands: in blocks along the dimension that it sums over, or
// in tiles, as contracts/quantize.h defines for weights and for other operands. Sums are computed as in other products.
//
// The gradient of a weight sums over tokens, so its blocks begin anew with each expert. In NVFP4 its operands are first
// transformed in groups of 16 tokens and rounded to BF16 (random_hadamard, tensor/low_precision.h); missing tokens
// count as zeros. Only dy is rounded stochastically, and only if there is a key. The rows of each expert are a tensor
// of their own, with its own scale in NVFP4, and so are the weights of each expert.
//
// Ops::weight_rounding() says which formats a device supports, and how. The CPU in F32 supports all formats and is the
// reference for other devices. CUDA on Hopper supports kFp8 in BF16, by products of codes (of columns for gradients of
// weights), whose sums are promoted to fp32 after every 128 elements; both dimensions of a weight must be multiples of
// 16. It emulates kMxFp8 and kNvFp4 in BF16, by products of operands that were rounded and widened again. Blackwell
// supports these two in BF16 with its tensor cores.
//
// An operand that was already rounded may be passed with its codes, which must be those that the product would make.
// The product then reads the codes, and the operand's values are ignored.
struct OperandRounding {
  OperandFormat format = OperandFormat::kAct;
  RandomRounding random = {};
  bool transform = true;    // whether operands of NVFP4's weight gradients are transformed
  WeightCodes weight = {};  // of w
  RowCodes rows = {};       // of x or dy; if rows are picked by an index, of all rows of the source, and with row_of
  // For operands that were rounded but not yet multiplied by their tensors' scales, as CUDA's emulation leaves them:
  // [E] stat, factors of the products; for a dense product [2], its factor, and 1 if the product is added to
  // something, else 0. Only with kAct.
  Tensor product_scale = {};
};

// How a device's products round weights.
enum class WeightRounding {
  kNone,    // not at all
  kInside,  // the product rounds them itself
  kCodes,   // the product reads codes that were made before (OperandRounding::weight)
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
  RowCodes h_codes = {};  // = h in FP8; undefined: not wanted
  OperandRounding rounding = {};
  bool keeps_h = true;      // false, only with h_codes: the values of h are undefined afterwards
  RowCodes pre_codes = {};  // = pre in FP8; undefined: not wanted; else the values of pre are undefined afterwards
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

// Rows that an operation reads: in order, or picked by an index, without being copied first.
struct OperandRows {
  Tensor source;      // [N, width]
  Tensor index = {};  // [R] i32: row r is row index[r] of source; undefined: row r
  // [N, K] i32: the rows that are row n of source, -1: none; every row that a product reads is there once. Read only
  // with codes of the source, which are spread by it.
  Tensor row_of = {};

  OperandRows() = default;
  OperandRows(Tensor source_rows, Tensor row_index = {}, Tensor rows_of_each = {})
      : source(source_rows), index(row_index), row_of(rows_of_each) {}

  int64_t num_rows() const { return index.defined() ? index.dim(0) : source.dim(0); }
  int64_t width() const { return source.dim(1); }
};

// What is added to the rows of an expert's product: its row of `values`, times row_weight if that is defined. The sum
// of a product is rounded before, and once more after it.
struct ExpertBias {
  Tensor values;           // [E, out] stat; undefined: none
  Tensor row_weight = {};  // [R] stat; undefined: 1

  bool defined() const { return values.defined(); }
};

// Linear layers over ragged groups of rows: expert e has rows [offsets[e], offsets[e + 1]). R is a
// capacity: rows from offsets[E] on are neither read nor written. An expert may have no rows; its dw is
// then set to zero, or left unchanged with `accumulate`.
struct GroupedLinearForward {
  Tensor x;        // [R, in]
  Tensor w;        // [E, out, in]
  Tensor offsets;  // [E + 1] i32
  Tensor y;        // = [R, out]
  OperandRounding rounding = {};
  ExpertBias bias = {};
};
// The experts' first layer: pre = x w^T by groups, plus a bias if there is one, h = activation(pre) * row_weight
// (contracts/activation.h).
struct GroupedActivationForward {
  Activation kind = Activation::kSwiGlu;
  OperandRows x;      // [R, in]
  Tensor w;           // [E, W, in], W = 2F for SwiGLU (gate | up), else F
  Tensor offsets;     // [E + 1] i32
  Tensor row_weight;  // [R] stat; undefined: 1
  Tensor pre;         // = [R, W]; may be undefined where pre_codes are wanted
  Tensor h;           // = [R, F]
  OperandRounding rounding = {};
  RowCodes h_codes = {};  // = h in FP8; undefined: not wanted
  // = h's columns in FP8, in groups by offsets; undefined: not wanted. Only together with h_codes; if wanted, h is not
  // written and may be undefined.
  ColumnCodes h_columns = {};
  bool keeps_h = true;      // false, only with h_codes: the values of h are undefined afterwards
  RowCodes pre_codes = {};  // as in LinearActivationForward; never with h_columns
  ExpertBias bias = {};     // of pre, without row_weight
};
// Pre-activations [R, W], or where they would be: a tensor with that shape and no memory.
inline Tensor pre_of(const GroupedActivationForward& args) {
  if (args.pre.defined()) return args.pre;
  return {nullptr, args.x.source.dtype(), {args.x.num_rows(), args.w.dim(1)}};
}
struct GroupedLinearBackwardInput {
  Tensor dy;       // [R, out]; may be undefined beside its codes, rounding.rows
  Tensor w;        // [E, out, in]
  Tensor offsets;  // [E + 1] i32
  Tensor dx;       // = [R, in]
  OperandRounding rounding = {};
};
// dy, or where its values would be, as pre_of().
inline Tensor dy_of(const GroupedLinearBackwardInput& args) {
  if (args.dy.defined() || !args.rounding.rows.defined()) return args.dy;
  return {nullptr, args.w.dtype(), args.rounding.rows.values.shape()};
}
// Backward through the experts' second layer y = h w^T and the activation before it: dh = dy w by groups, then
// ActivationBackward (contracts/activation.h) of dh.
struct GroupedActivationBackward {
  Activation kind = Activation::kSwiGlu;
  OperandRows dy;          // [R, out]
  Tensor w;                // [E, out, F]
  Tensor offsets;          // [E + 1] i32
  Tensor pre, row_weight;  // [R, W], [R] stat: as in forward; pre may be undefined where there are pre_codes
  // = like pre; may be the storage of pre. May be undefined where its values are not wanted (dpre_columns): those of
  // pre are undefined afterwards, then.
  Tensor dpre;
  Tensor drow_weight;  // = [R] stat; undefined when row_weight is
  OperandRounding rounding = {};
  RowCodes dpre_codes = {};  // = dpre in FP8; undefined: not wanted
  // = dpre's columns in FP8, in groups by offsets; undefined: not wanted. Only together with dpre_codes; if wanted, the
  // values of dpre are undefined afterwards, unless keeps_dpre.
  ColumnCodes dpre_columns = {};
  bool keeps_dpre = false;
  Tensor h = {};               // = [R, F], what forward makes of pre; undefined: not wanted
  RowCodes pre_codes = {};     // as in ActivationBackward
  ColumnCodes h_columns = {};  // = the columns of h in FP8, in groups by offsets; undefined: not wanted
};
inline Tensor pre_of(const GroupedActivationBackward& args) {
  if (args.pre.defined()) return args.pre;
  if (args.dpre.defined()) return args.dpre;
  return {nullptr, args.dy.source.dtype(), {args.dy.num_rows(), activation_parts(args.kind) * args.w.dim(2)}};
}
// The squares of an expert's gradient [rows, cols] are summed in parts of 16 x 128 elements.
constexpr int64_t kSquareRows = 16, kSquareCols = 128;
inline Shape square_parts(const Shape& gradients) {  // of [E, rows, cols]
  return {gradients[0], (gradients[1] + kSquareRows - 1) / kSquareRows, (gradients[2] + kSquareCols - 1) / kSquareCols};
}

// Backward of ExpertBias from the gradients of the rows it was added to. dvalues[e] += the sum over the expert's rows
// of dy times row_weight; drow_weight[r] += dy[r] . values[e]. Order of sums, on every device: the rows of an expert
// are cut into chunks of kBiasChunkRows (bias.h) from its first on; a chunk's are added one after the other, from 0 on,
// in stat, then the chunks' sums are, and their sum is added to dvalues. drow_weight's has the device's order of a row.
struct ExpertBiasBackward {
  OperandRows dy;           // [R, out]
  Tensor offsets;           // [E + 1] i32
  ExpertBias bias;          // as in forward
  Tensor dvalues;           // [E, out] stat +=
  Tensor drow_weight = {};  // [R] stat +=; undefined when row_weight is
};

// At most one of x and dy is picked by an index. If codes of their columns are given, in groups by offsets, their
// values are not read, and one of them may be undefined. Sums over rows are cut as pieces.h says.
struct GroupedLinearBackwardWeight {
  OperandRows x;   // [R, in]
  OperandRows dy;  // [R, out]
  Tensor offsets;  // [E + 1] i32
  Tensor dw;       // = [E, out, in] stat
  bool accumulate = false;
  OperandRounding rounding = {};
  ColumnCodes x_columns = {}, dy_columns = {};
  // = [E, parts of rows, parts of columns] f64 (square_parts): sums of squares of dw, infinite if a part has elements
  // beyond 1e18. Undefined: not wanted; always so with accumulate.
  Tensor squares = {};

  // The side that is there as values, if one is not.
  const OperandRows& either() const { return dy.source.defined() ? dy : x; }
  int64_t num_rows() const { return either().num_rows(); }  // R
};

}  // namespace nmoe
