// The head's logits on Hopper, which are summed up and stay on the chip. Compiled for sm_90a only.
#pragma once

#include "ops/cuda/plans/head.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Logits are the products x w^T in F32, one chain over ascending k, 16 of them an instruction.
struct HeadProduct {
  Tensor x;             // [R, D] bf16, R > 0, D a multiple of 8
  Tensor w;             // [V, D] bf16, V a multiple of 8
  Tensor targets;       // [R] i32
  Tensor exponentials;  // = [R, V] bf16: exp(logit - the highest of its tile); undefined: not wanted
  LogitTiles tiles;     // = of these rows
};
// Tensors begin at multiples of 16 bytes and have no gaps.
void head_product(Context& ctx, const HeadProduct& args);

}  // namespace nmoe::cuda::sm90
