// Products for generation: a row's sums have one order, that of k, whatever other rows there are and however many, so
// that a token's bits depend on its own sequence alone (ops/ops.h, "batch invariant"). In BF16 it is that of training's
// products, whose bits these have; in F32 training's forward products are these. Most often there are few rows, and
// reading the weights once is what takes the time.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda {

// Shapes as in LinearForward and of the experts' layers (ops/contracts/linear.h), checked by the caller; not in a
// counting run, and y has elements. y F32 or like x.
void invariant_product(Context& ctx, Tensor x, Tensor w, Tensor addend, Tensor y);
void invariant_grouped_product(Context& ctx, const OperandRows& x, Tensor w, Tensor offsets, Tensor y);

// A product for each of G groups: row t of y [T, G, out] is x [T, G, in] times the group's w, of w [G, out * in] apart.
// All act; y has elements.
void invariant_batched_product(Context& ctx, Tensor x, Tensor w, Tensor y);
// pre and h of an experts' or, without offsets, an MLP's first layer, whose w is [W, in].
void invariant_activation(Context& ctx, const GroupedActivationForward& args);

}  // namespace nmoe::cuda
