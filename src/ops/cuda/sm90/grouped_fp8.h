// Grouped products of FP8 operands on Hopper by TMA and wgmma. Compiled for sm_90a only.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Rows [offsets[e], offsets[e + 1]) of x, times the weights of expert e: y = x w^T, and with the transposed weights the
// gradient of inputs. Operands are E4M3 with E8M0 scales, as Quantize (contracts/quantize.h) makes them in FP8, k along
// the rows of both.
struct GroupedFp8 {
  Tensor x;         // [R, K] u8
  Tensor x_scales;  // [R, ceil(K / 128)] u8
  Tensor w;         // [E, N, K] u8
  Tensor w_scales;  // [E, ceil(N / 128), ceil(K / 128)] u8
  Tensor offsets;   // [E + 1] i32
  Tensor y;         // = [R, N] BF16
};

// K is a multiple of 16, N of 8, and all begin at multiples of 16 bytes; R, N, K > 0. Rows from offsets[E] on are
// neither read nor written. Each 128 of k is summed by tensor cores, scaled, and added in fp32, in the order of k.
void grouped_fp8(Context& ctx, const GroupedFp8& args);

}  // namespace nmoe::cuda::sm90
