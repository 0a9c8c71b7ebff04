// Grouped products (GroupedLinearForward and its kin in the operations' contracts) by TMA and wgmma: BF16 on Hopper.
// Compiled for sm_90a only.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/plans/grouped_linear.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// What these kernels take, GroupedEngine::kSm90 says. Shapes as in the contracts, R > 0; tensors begin at multiples of
// 16 bytes. Rows from offsets[E] on are neither read nor written.
void grouped_product(Context& ctx, const ExpertProduct& product);  // rows in order
// With the activations that its plan fuses. row_sums: of its plan.
void grouped_activation(Context& ctx, const GroupedActivationForward& args);
void grouped_activation_backward(Context& ctx, const GroupedActivationBackward& args, Tensor row_sums);
void grouped_backward_weight(Context& ctx, const GroupedLinearBackwardWeight& args, const TileOrder& order);

// total [R] F32 = the sums of the columns of sums [tiles, R] F32, tile by tile, for the first *num_rows [1] i32.
void add_row_sums(Context& ctx, Tensor sums, Tensor num_rows, Tensor total);

}  // namespace nmoe::cuda::sm90
