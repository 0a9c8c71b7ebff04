// Grouped products of FP8 operands on Hopper by TMA and wgmma. Compiled for sm_90a only.
#pragma once

#include "base/kinds.h"
#include "ops/contracts/quantize.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Rows [offsets[e], offsets[e + 1]) of x, times the weights of expert e: y = x w^T, and with the transposed weights the
// gradient of inputs. Operands are E4M3 with E8M0 scales, as Quantize (contracts/quantize.h) makes them in FP8, k along
// the rows of both.
struct GroupedFp8 {
  RowCodes x;       // [R, K]
  Tensor w;         // [E, N, K] u8
  Tensor w_scales;  // [E, ceil(N / 128), ceil(K / 128)] u8
  Tensor offsets;   // [E + 1] i32; undefined: all rows go to the only expert
  Tensor y;         // = [R, N] BF16
  Tensor addend;    // [R, N] BF16 that is added, may be y; undefined: none
};

// K is a multiple of 16, N of 8, and all begin at multiples of 16 bytes; R, N, K > 0. Rows from offsets[E] on are
// neither read nor written. Each 128 of k is summed by tensor cores, scaled, and added in fp32, in the order of k, to
// the addend if there is one.
void grouped_fp8(Context& ctx, const GroupedFp8& args);

// The same with w [E, W, K], W = 2F for SwiGLU (gates and what they gate), else F, and the activation behind it
// (contracts/activation.h): h from pre as it is stored, and h's own codes.
struct GroupedFp8Activation {
  Activation kind;
  RowCodes x;             // [R, K]
  Tensor w;               // [E, W, K] u8
  Tensor w_scales;        // [E, W / 128, ceil(K / 128)] u8
  Tensor offsets;         // [E + 1] i32
  Tensor row_weight;      // [R] F32
  Tensor pre;             // = [R, W] BF16, unless there are pre_codes
  RowCodes pre_codes;     // = [R, W] instead of pre, never with h_columns; undefined: not wanted
  Tensor h;               // = [R, F] BF16; undefined: codes alone
  RowCodes h_codes;       // = [R, F]; undefined: not wanted
  ColumnCodes h_columns;  // = of [R, F] in groups by offsets, with h_codes and without h; undefined: not wanted
};
// F is a multiple of this: a part of a row in a tile shares a scale, as does what is made of its parts.
constexpr int64_t kFp8ActivationCols = block_size(OperandFormat::kFp8);
void grouped_fp8_activation(Context& ctx, const GroupedFp8Activation& args);

// Backwards through the activation: dh = x w^T, of which dpre is made, with its codes, and the gradients of rows'
// weights.
struct GroupedFp8ActivationBackward {
  Activation kind;
  RowCodes x;                // [R, K]: dy
  Tensor w;                  // [E, F, K] u8, transposed weights
  Tensor w_scales;           // [E, F / 128, ceil(K / 128)] u8
  Tensor offsets;            // [E + 1] i32
  Tensor pre;                // [R, W] BF16, unless there are pre_codes
  RowCodes pre_codes;        // [R, W] instead of pre, with dpre_columns; or undefined
  Tensor row_weight;         // [R] F32
  Tensor dpre;               // = [R, W] BF16, may be pre; undefined: codes of both kinds alone
  RowCodes dpre_codes;       // = [R, W]; undefined: not wanted
  ColumnCodes dpre_columns;  // = of [R, W] in groups by offsets, with dpre_codes; undefined: dpre is wanted
  Tensor row_sums;           // scratch [F / 128, R] F32
  Tensor drow_weight;        // = [R] F32
};
void grouped_fp8_activation_backward(Context& ctx, const GroupedFp8ActivationBackward& args);

}  // namespace nmoe::cuda::sm90
