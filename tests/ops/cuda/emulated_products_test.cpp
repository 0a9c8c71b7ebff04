// Products in MXFP8 and NVFP4 on Hopper, where they are emulated, against the CPU's.
#include <cmath>

#include "ops/contracts/pieces.h"
#include "ops/cuda/rounded_experts.h"
#include "ops/quantize_cases.h"
#include "ops/signal_to_noise.h"

namespace nmoe::test {
namespace {

constexpr OperandFormat kFormats[] = {OperandFormat::kMxFp8, OperandFormat::kNvFp4};

class CudaEmulated : public CudaRoundedTest {
 protected:
  CudaEmulated() { *host_key_.data<int64_t>() = 0x123456789; }

  Tensor identity(int64_t size) {
    const Tensor x = pool_.zeros({size, size});
    for (int64_t i = 0; i < size; ++i) set(x, i * size + i, 1.0);
    return x;
  }
  // Of gradients of outputs, on the host and on the device: in NVFP4 at random.
  OperandRounding gradients(OperandFormat format) const {
    if (format != OperandFormat::kNvFp4) return {.format = format};
    return {.format = format, .random = {.key = host_key_, .stream = 3}};
  }
  OperandRounding device_gradients(OperandFormat format) {
    OperandRounding rounding = gradients(format);
    rounding.random.key = up(rounding.random.key);
    return rounding;
  }

  // Times an identity, which every format holds, a product is what its other operand x [T, width] is rounded to: to the
  // bit, but that BF16 holds fewer of a tensor's scale. NaN is NaN. NVFP4's gradients of weights are sums of 16 values,
  // which either side may cut or multiply by the scale one by one: there to a millionth of the largest of them, of
  // which a step of E2M1 is a two-hundredth at least.
  void expect_operands_of_the_cpu(OperandFormat format, const Tensor& x, const std::string& what) {
    SCOPED_TRACE(what);
    const int64_t T = x.dim(0), width = x.dim(1);
    const Tensor device_x = up(x, DType::kBF16);
    const OperandRounding rounding{.format = format}, gradient = gradients(format),
                                                      device_gradient = device_gradients(format);
    const auto expect_same = [](const Tensor& actual, const Tensor& expected) {
      for (int64_t i = 0; i < expected.num_elements(); ++i) {
        if (std::isnan(get(expected, i)) && std::isnan(get(actual, i))) continue;
        ASSERT_EQ(get(actual, i), get(expected, i)) << i;
        ASSERT_EQ(std::signbit(get(actual, i)), std::signbit(get(expected, i))) << i;
      }
    };
    const Tensor of_width = identity(width), device_of_width = up(of_width, DType::kBF16);
    const Tensor of_rows = identity(T), device_of_rows = up(of_rows, DType::kBF16);
    {
      const Tensor y = up(pool_.full({T, width}, 7.0)), expected = pool_.zeros({T, width});
      run([&](Ops& ops) { ops.linear_forward({.x = device_x, .w = device_of_width, .y = y, .rounding = rounding}); });
      cpu().linear_forward({.x = x, .w = of_width, .y = expected, .rounding = rounding});
      expect_same(down(y), expected);
    }
    for (const bool of_weights : {true, false}) {
      const Tensor expected = pool_.zeros({T, width}), dx = poisoned({T, width});
      run([&](Ops& ops) {
        ops.linear_backward_input({.dy = of_weights ? device_of_rows : device_x,
                                   .w = of_weights ? device_x : device_of_width,
                                   .dx = dx,
                                   .rounding = device_gradient});
      });
      cpu().linear_backward_input(
          {.dy = of_weights ? of_rows : x, .w = of_weights ? x : of_width, .dx = expected, .rounding = gradient});
      expect_same(down(dx), rounded(expected, DType::kBF16));
    }
    for (const bool of_inputs : {true, false}) {
      const Shape shape = of_inputs ? Shape({T, width}) : Shape({width, T});
      const auto expect_same_sums = [&](const Tensor& actual, const Tensor& expected) {
        if (format != OperandFormat::kNvFp4) return expect_same(actual, expected);
        const auto at = [&](int64_t row, int64_t col) { return of_inputs ? row * width + col : col * T + row; };
        for (int64_t i = 0; i < T * width; ++i) {
          const int64_t row = i / width, col = i % width, first = row / 16 * 16;  // of its block
          double largest = 0.0;
          for (int64_t k = first; k < std::min(first + 16, T); ++k) {
            largest = std::max(largest, std::abs(get(expected, at(k, col))));
          }
          const double one = get(actual, at(row, col)), other = get(expected, at(row, col));
          if (std::isnan(one) && std::isnan(other)) continue;
          ASSERT_LE(std::abs(one - other), 0x1p-20 * largest) << row << ", " << col;
        }
      };
      const Tensor dw = up(pool_.full(shape, 7.0)), expected = pool_.zeros(shape);
      run([&](Ops& ops) {
        ops.linear_backward_weight({.x = of_inputs ? device_x : device_of_rows,
                                    .dy = of_inputs ? device_of_rows : device_x,
                                    .dw = dw,
                                    .rounding = device_gradient});
      });
      cpu().linear_backward_weight(
          {.x = of_inputs ? x : of_rows, .dy = of_inputs ? of_rows : x, .dw = expected, .rounding = gradient});
      expect_same_sums(down(dw), expected);
    }
    tensors_.rewind(0);
  }

  const Tensor host_key_ = pool_.zeros(DType::kI64, {1});
};

// Along rows, along weights' outputs or in their tiles and along tokens, with blocks that are short.
TEST_F(CudaEmulated, OperandsAreTheCpusToTheBit) {
  for (const OperandFormat format : kFormats) {
    for (const auto& [T, width] : {std::pair{70, 96}, {33, 77}, {64, 40}, {300, 160}}) {
      const Tensor x = normal({T, width}, DType::kBF16);
      for (int64_t i = 0; i < x.num_elements(); i += 5) {
        set(x, i, get(x, i) * std::exp2(static_cast<double>(i % 21) - 10));
      }
      expect_operands_of_the_cpu(format, x, fmt::format("{} x {}", T, width));
    }
  }
}

// Zeros, NaN, infinities, subnormals and ties, as BF16 has them.
TEST_F(CudaEmulated, OperandsOfTheReferenceAreTheCpus) {
  for (const QuantizeCase& one : read_quantize_cases(pool_)) {
    const Tensor& x = one.args.x;
    if (one.args.format == OperandFormat::kFp8 || x.num_elements() == 0) continue;
    expect_operands_of_the_cpu(one.args.format, rounded(x, DType::kBF16).reshape({x.dim(1), x.dim(2)}), one.name);
  }
}

// Of experts, one of them without rows, with all that is not ordinary; rows that are not there stay as they are.
TEST_F(CudaEmulated, OperandsOfExpertsAreTheCpusToTheBit) {
  const int64_t E = 4, R = 90, width = 48;
  const ExpertRows of = expert_rows(R, R);
  const int64_t third = of.offsets.data<int32_t>()[2];
  const Tensor x = normal({R, width}, DType::kBF16), w = pool_.zeros({E, width, width});
  set_specials(x);
  for (int64_t j = 0; j < width; ++j) {  // of the third, whose scale is a number
    set(x, third * width + j, j % 2 == 0 ? 0.0 : -0.0);
    set(x, (third + 1) * width + j, tie(j));
    set(x, (third + 2) * width + j, std::ldexp(get(x, (third + 2) * width + j), -130));
  }
  rounded(x, DType::kBF16);
  for (int64_t i = 0; i < E * width; ++i) set(w, i * width + i % width, 1.0);
  const Tensor device_x = up(x, DType::kBF16), device_w = up(w, DType::kBF16), offsets = up(of.offsets);
  for (const OperandFormat format : kFormats) {
    for (const bool backward : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, backward {}", format == OperandFormat::kNvFp4 ? "NVFP4" : "MXFP8", backward));
      const Tensor actual = poisoned({R, width}), expected = pool_.full({R, width}, 7.0);
      const OperandRounding rounding = backward ? gradients(format) : OperandRounding{.format = format},
                            device_rounding = backward ? device_gradients(format) : rounding;
      const auto product = [&](Ops& ops, Tensor rows, Tensor weights, Tensor bounds, Tensor result,
                               const OperandRounding& how) {
        if (backward) {
          ops.grouped_linear_backward_input(
              {.dy = rows, .w = weights, .offsets = bounds, .dx = result, .rounding = how});
        } else {
          ops.grouped_linear_forward({.x = rows, .w = weights, .offsets = bounds, .y = result, .rounding = how});
        }
      };
      run([&](Ops& ops) { product(ops, device_x, device_w, offsets, actual, device_rounding); });
      product(cpu(), x, w, of.offsets, expected, rounding);
      const Tensor found = down(actual);
      rounded(expected, DType::kBF16);
      for (int64_t i = 0; i < R * width; ++i) {
        if (std::isnan(get(expected, i)) && std::isnan(get(found, i))) continue;
        ASSERT_EQ(get(found, i), get(expected, i)) << i / width << ", " << i % width;
      }
    }
  }
}

// More experts than a warp has lanes, some of them without rows; sizes of which wgmma takes all but one.
TEST_F(CudaEmulated, ManyExpertsAreThoseOfTheCpu) {
  constexpr double kLeastRatio = 50, kLeastRatioOfWeights = 100;
  const int64_t E = 70;
  std::vector<double> bounds = {0};
  for (int64_t e = 0; e < E; ++e)
    bounds.push_back(bounds.back() + static_cast<double>(e * 7 % 3 * 9 + (e == 40 ? 50 : 0)));
  const auto rows = static_cast<int64_t>(bounds.back()), R = rows + 5;
  const Tensor offsets = pool_.ints({E + 1}, bounds);
  for (const OperandFormat format : kFormats) {
    for (const auto& [in, out] : {std::pair{32, 24}, {40, 136}, {77, 45}}) {
      SCOPED_TRACE(fmt::format("format {}, {} to {}", static_cast<int>(format), in, out));
      const Tensor x = normal({R, in}, DType::kBF16), dy = normal({R, out}, DType::kBF16, 1e-3),
                   w = normal({E, out, in}, DType::kBF16, 0.05);
      for (int64_t e = 0; e < E; ++e) set(w, e * out * in, 0.25 * static_cast<double>(1 + e % 4));  // scales differ
      set(x, 0, 64.0);                                                                              // and of rows
      for (int64_t i = rows * in; i < R * in; ++i) set(x, i, 0x1p100);                              // nobody's
      const Tensor device_x = up(x, DType::kBF16), device_dy = up(dy, DType::kBF16), device_w = up(w, DType::kBF16),
                   device_offsets = up(offsets);
      const OperandRounding rounding{.format = format}, gradient = gradients(format),
                                                        device_gradient = device_gradients(format);
      const Tensor y = poisoned({R, out}), dx = poisoned({R, in}), dw = up(pool_.full({E, out, in}, 7.0));
      const Tensor expected_y = pool_.zeros({R, out}), expected_dx = pool_.zeros({R, in}),
                   expected_dw = pool_.zeros({E, out, in});
      for (const bool again : {false, true}) {  // gradients of weights twice, added
        run([&](Ops& ops) {
          ops.grouped_linear_forward(
              {.x = device_x, .w = device_w, .offsets = device_offsets, .y = y, .rounding = rounding});
          ops.grouped_linear_backward_input(
              {.dy = device_dy, .w = device_w, .offsets = device_offsets, .dx = dx, .rounding = device_gradient});
          ops.grouped_linear_backward_weight({.x = device_x,
                                              .dy = device_dy,
                                              .offsets = device_offsets,
                                              .dw = dw,
                                              .accumulate = again,
                                              .rounding = device_gradient});
        });
        cpu().grouped_linear_backward_weight(
            {.x = x, .dy = dy, .offsets = offsets, .dw = expected_dw, .accumulate = again, .rounding = gradient});
      }
      cpu().grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = expected_y, .rounding = rounding});
      cpu().grouped_linear_backward_input(
          {.dy = dy, .w = w, .offsets = offsets, .dx = expected_dx, .rounding = gradient});
      EXPECT_GT(signal_to_noise(down(y).rows(0, rows), expected_y.rows(0, rows)), kLeastRatio);
      EXPECT_GT(signal_to_noise(down(dx).rows(0, rows), expected_dx.rows(0, rows)), kLeastRatio);
      EXPECT_GT(signal_to_noise(down(dw), expected_dw), kLeastRatioOfWeights);
      tensors_.rewind(0);
    }
  }
}

// Of an expert whose rows are summed in pieces (contracts/pieces.h): their sums have a scale of the whole expert's.
TEST_F(CudaEmulated, PiecesOfWeightsGradientsAreThoseOfTheCpu) {
  const int64_t in = 48, out = 144, E = 3, R = kUncutRows + 633;
  const Tensor offsets = pool_.ints({E + 1}, {0, 300, static_cast<double>(R), static_cast<double>(R)});
  const Tensor x = normal({R, in}, DType::kBF16), dy = normal({R, out}, DType::kBF16, 1e-3);
  const Tensor device_x = up(x, DType::kBF16), device_dy = up(dy, DType::kBF16), device_offsets = up(offsets);
  for (const OperandFormat format : kFormats) {
    SCOPED_TRACE(static_cast<int>(format));
    const Tensor dw = up(pool_.full({E, out, in}, 7.0)), expected = pool_.zeros({E, out, in});
    const OperandRounding gradient = gradients(format), device_gradient = device_gradients(format);
    for (const bool again : {false, true}) {
      run([&](Ops& ops) {
        ops.grouped_linear_backward_weight({.x = device_x,
                                            .dy = device_dy,
                                            .offsets = device_offsets,
                                            .dw = dw,
                                            .accumulate = again,
                                            .rounding = device_gradient});
      });
      cpu().grouped_linear_backward_weight(
          {.x = x, .dy = dy, .offsets = offsets, .dw = expected, .accumulate = again, .rounding = gradient});
    }
    EXPECT_GT(signal_to_noise(down(dw), expected), 80);
  }
}

// Sums of the same products in fp32; BF16's rounding leaves 53 dB of activations.
class CudaEmulatedExperts : public CudaEmulated, public ::testing::WithParamInterface<OperandFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, CudaEmulatedExperts, ::testing::ValuesIn(kFormats));

TEST_P(CudaEmulatedExperts, AreThoseOfTheCpu) {
  constexpr double kLeastRatio = 50, kLeastRatioOfWeights = 100;
  const OperandRounding forward{.format = GetParam()}, gradient = gradients(GetParam()),
                                                       device_gradient = device_gradients(GetParam());
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
                                    .rounding = forward});
  });
  cpu().grouped_activation_forward({.x = picked,
                                    .w = w_in,
                                    .offsets = offsets,
                                    .row_weight = row_weight,
                                    .pre = expected_pre,
                                    .h = expected_h,
                                    .rounding = forward});
  expect_near(pre, expected_pre, "pre");
  const Tensor same_pre = down(pre), same_h = down(h);  // what both go on from
  run([&](Ops& ops) {
    ops.grouped_linear_forward({.x = h, .w = device_out, .offsets = device_offsets, .y = y, .rounding = forward});
  });
  cpu().grouped_linear_forward({.x = same_h, .w = w_out, .offsets = offsets, .y = expected_y, .rounding = forward});
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
                                     .rounding = device_gradient});
  });
  cpu().grouped_activation_backward({.dy = picked,
                                     .w = w_out,
                                     .offsets = offsets,
                                     .pre = same_pre,
                                     .row_weight = row_weight,
                                     .dpre = expected_dpre,
                                     .drow_weight = expected_dweight,
                                     .rounding = gradient});
  EXPECT_GT(signal_to_noise(down(dpre).rows(0, rows), expected_dpre.rows(0, rows)), kLeastRatio - 6);  // of rounded dh
  const Tensor same_dpre = down(dpre);
  run([&](Ops& ops) {
    ops.grouped_linear_backward_input(
        {.dy = dpre, .w = device_in, .offsets = device_offsets, .dx = drows, .rounding = device_gradient});
  });
  cpu().grouped_linear_backward_input(
      {.dy = same_dpre, .w = w_in, .offsets = offsets, .dx = expected_drows, .rounding = gradient});
  expect_near(drows, expected_drows, "drows");

  const Tensor dw = up(pool_.full({E, W, D}, 7.0)), expected_dw = pool_.zeros({E, W, D});
  run([&](Ops& ops) {
    ops.grouped_linear_backward_weight(
        {.x = device_picked, .dy = dpre, .offsets = device_offsets, .dw = dw, .rounding = device_gradient});
  });
  cpu().grouped_linear_backward_weight(
      {.x = picked, .dy = same_dpre, .offsets = offsets, .dw = expected_dw, .rounding = gradient});
  EXPECT_GT(signal_to_noise(down(dw), expected_dw), kLeastRatioOfWeights);
}

}  // namespace
}  // namespace nmoe::test
