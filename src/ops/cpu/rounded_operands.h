// Operands of a product in low precision, as F32: each value is what its code and its block's scale stand for. In NVFP4
// without the tensor's scale, which belongs behind the product, so that operands stay exact. Formats, blocks and
// letters: ops/contracts/quantize.h.
//
// Results lie in `scope`. A counting run claims the same.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

struct RoundedOperand {
  Tensor values;        // like x, but for padding; x itself without a format
  Tensor offsets = {};  // of round_columns: [G + 1] i32, of the groups in values; undefined where there is one
  Tensor amax = {};     // NVFP4: [G] F32, or [1] without groups
};

// What the product of two operands is to be multiplied by, in group g.
float product_factor(const RoundedOperand& a, const RoundedOperand& b, int64_t group = 0);

inline OperandRounding to_nearest(const OperandRounding& rounding) {
  return {.format = rounding.format, .transform = rounding.transform};
}

// The rows of activations or of their gradients: x [N, C], blocks along C. offsets [G + 1] i32: the groups of rows,
// each of which is a tensor with a scale in NVFP4; undefined: one group.
RoundedOperand round_rows(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor x,
                          Tensor offsets = {});

// Weights [out, in] or [E, out, in], for products that sum over `in` or over `out`.
enum class SumOver { kIn, kOut };
RoundedOperand round_weights(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor w, SumOver over);

// x [N, C], blocks along N, none of which crosses the groups of rows that `offsets` ([G + 1] i32) names; undefined: one
// group. NVFP4: every 16 values are transformed (random_hadamard) before, unless the rounding says otherwise. A group
// then gets zeros up to whole blocks, which do not change a product of two operands so transformed.
RoundedOperand round_columns(Context& ctx, ArenaScope& scope, const OperandRounding& rounding, Tensor x,
                             Tensor offsets = {});

}  // namespace nmoe::cpu
