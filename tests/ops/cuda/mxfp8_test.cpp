// Products in MXFP8 on Hopper, where they are emulated, against the CPU's.
#include <cmath>

#include "ops/cuda/rounded_experts.h"
#include "ops/signal_to_noise.h"

namespace nmoe::test {
namespace {

constexpr OperandRounding kMxFp8 = {.format = OperandFormat::kMxFp8};

class CudaMxFp8 : public CudaRoundedTest {
 protected:
  Tensor identity(int64_t size) {
    const Tensor x = pool_.zeros({size, size});
    for (int64_t i = 0; i < size; ++i) set(x, i * size + i, 1.0);
    return x;
  }
};

// Times an identity, which every format holds, a product is what its other operand is rounded to: to the bit, along
// rows, along weights' outputs and along tokens, with blocks that are short.
TEST_F(CudaMxFp8, OperandsAreTheCpusToTheBit) {
  for (const auto& [T, width] : {std::pair{70, 96}, {33, 77}, {64, 40}}) {
    const Tensor x = normal({T, width}, DType::kBF16);
    for (int64_t i = 0; i < x.num_elements(); i += 5)
      set(x, i, get(x, i) * std::exp2(static_cast<double>(i % 21) - 10));
    const Tensor device_x = up(x, DType::kBF16);
    {
      const Tensor one = identity(width), expected = pool_.zeros({T, width}), y = poisoned({T, width});
      const Tensor device_one = up(one, DType::kBF16);
      run([&](Ops& ops) { ops.linear_forward({.x = device_x, .w = device_one, .y = y, .rounding = kMxFp8}); });
      cpu().linear_forward({.x = x, .w = one, .y = expected, .rounding = kMxFp8});
      EXPECT_TRUE(same_bits(down(y), expected));
    }
    {
      const Tensor one = identity(T), expected = pool_.zeros({T, width}), dx = poisoned({T, width});
      const Tensor device_one = up(one, DType::kBF16);
      run([&](Ops& ops) {
        ops.linear_backward_input({.dy = device_one, .w = device_x, .dx = dx, .rounding = kMxFp8});
      });
      cpu().linear_backward_input({.dy = one, .w = x, .dx = expected, .rounding = kMxFp8});
      EXPECT_TRUE(same_bits(down(dx), expected));
      const Tensor dw = up(pool_.full({T, width}, 7.0)), expected_dw = pool_.zeros({T, width});
      run([&](Ops& ops) {
        ops.linear_backward_weight({.x = device_x, .dy = device_one, .dw = dw, .rounding = kMxFp8});
      });
      cpu().linear_backward_weight({.x = x, .dy = one, .dw = expected_dw, .rounding = kMxFp8});
      EXPECT_TRUE(same_bits(down(dw), expected_dw));
    }
    tensors_.rewind(0);
  }
}

// Sums of the same products in fp32; BF16's rounding leaves 53 dB of activations.
TEST_F(CudaMxFp8, ExpertsAreThoseOfTheCpu) {
  constexpr double kLeastRatio = 50, kLeastRatioOfWeights = 100;
  const int64_t E = 4, R = 400, T = 150, D = 136, F = 72, W = 2 * F;
  const ExpertRows of = expert_rows(R, T);
  const int64_t rows = of.count;
  const Tensor offsets = of.offsets, index = of.index, row_weight = of.row_weight;
  const Tensor tokens = normal({T, D}, DType::kBF16), w_in = normal({E, W, D}, DType::kBF16, 0.05),
               w_out = normal({E, D, F}, DType::kBF16, 0.05);
  const Tensor device_offsets = up(offsets), device_in = up(w_in, DType::kBF16), device_out = up(w_out, DType::kBF16),
               weight = up(row_weight), device_index = up(index), device_tokens = up(tokens, DType::kBF16);
  const OperandRows picked(tokens, index), device_picked(device_tokens, device_index);
  const auto expect_near = [&](const Tensor& actual, const Tensor& expected, const char* what) {
    EXPECT_GT(signal_to_noise(down(actual).rows(0, rows), expected.rows(0, rows)), kLeastRatio) << what;
  };

  const Tensor pre = poisoned({R, W}), h = poisoned({R, F}), y = poisoned({R, D});
  const Tensor expected_pre = pool_.zeros({R, W}), expected_h = pool_.zeros({R, F}), expected_y = pool_.zeros({R, D});
  run([&](Ops& ops) {
    ops.grouped_activation_forward({.x = device_picked,
                                    .w = device_in,
                                    .offsets = device_offsets,
                                    .row_weight = weight,
                                    .pre = pre,
                                    .h = h,
                                    .rounding = kMxFp8});
  });
  cpu().grouped_activation_forward({.x = picked,
                                    .w = w_in,
                                    .offsets = offsets,
                                    .row_weight = row_weight,
                                    .pre = expected_pre,
                                    .h = expected_h,
                                    .rounding = kMxFp8});
  expect_near(pre, expected_pre, "pre");
  const Tensor same_pre = down(pre), same_h = down(h);  // what both go on from
  run([&](Ops& ops) {
    ops.grouped_linear_forward({.x = h, .w = device_out, .offsets = device_offsets, .y = y, .rounding = kMxFp8});
  });
  cpu().grouped_linear_forward({.x = same_h, .w = w_out, .offsets = offsets, .y = expected_y, .rounding = kMxFp8});
  expect_near(y, expected_y, "y");

  const Tensor dpre = poisoned({R, W}), dweight = up(pool_.zeros({R})), drows = poisoned({R, D});
  const Tensor expected_dpre = pool_.zeros({R, W}), expected_dweight = pool_.zeros({R}),
               expected_drows = pool_.zeros({R, D});
  run([&](Ops& ops) {
    ops.grouped_activation_backward({.dy = device_picked,
                                     .w = device_out,
                                     .offsets = device_offsets,
                                     .pre = pre,
                                     .row_weight = weight,
                                     .dpre = dpre,
                                     .drow_weight = dweight,
                                     .rounding = kMxFp8});
  });
  cpu().grouped_activation_backward({.dy = picked,
                                     .w = w_out,
                                     .offsets = offsets,
                                     .pre = same_pre,
                                     .row_weight = row_weight,
                                     .dpre = expected_dpre,
                                     .drow_weight = expected_dweight,
                                     .rounding = kMxFp8});
  EXPECT_GT(signal_to_noise(down(dpre).rows(0, rows), expected_dpre.rows(0, rows)), kLeastRatio - 6);  // of rounded dh
  const Tensor same_dpre = down(dpre);
  run([&](Ops& ops) {
    ops.grouped_linear_backward_input(
        {.dy = dpre, .w = device_in, .offsets = device_offsets, .dx = drows, .rounding = kMxFp8});
  });
  cpu().grouped_linear_backward_input(
      {.dy = same_dpre, .w = w_in, .offsets = offsets, .dx = expected_drows, .rounding = kMxFp8});
  expect_near(drows, expected_drows, "drows");

  const Tensor dw = up(pool_.full({E, W, D}, 7.0)), expected_dw = pool_.zeros({E, W, D});
  run([&](Ops& ops) {
    ops.grouped_linear_backward_weight(
        {.x = device_picked, .dy = dpre, .offsets = device_offsets, .dw = dw, .rounding = kMxFp8});
  });
  cpu().grouped_linear_backward_weight(
      {.x = picked, .dy = same_dpre, .offsets = offsets, .dw = expected_dw, .rounding = kMxFp8});
  EXPECT_GT(signal_to_noise(down(dw), expected_dw), kLeastRatioOfWeights);
}

}  // namespace
}  // namespace nmoe::test
