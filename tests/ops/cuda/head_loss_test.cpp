// The fused head on the GPU against the CPU's, over odd and even vocabularies, one as large as models have, and more
// tokens than a chunk. Needs a GPU: label gpu.

#include <algorithm>
#include <numeric>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct HeadShape {
  int64_t tokens, dim, vocab;
};
constexpr HeadShape kShapes[] = {
    {0, 3, 5},      {1, 3, 2},        {7, 5, 37},      {600, 33, 1030},    {65, 16, 1024},
    {16'500, 3, 8}, {3, 16, 201'088}, {2, 8, 100'003}, {1200, 16, 20'480},  // segments of a row that a block holds, and
                                                                            // more rows than blocks
};

// Logits of a standard deviation of 2. Where a token has no loss at all, nothing else than 0 may come out.
HeadLoss make_head_loss(TensorPool& pool, const HeadShape& shape) {
  const auto [tokens, dim, vocab] = shape;
  const Tensor x = pool.normal({tokens, dim}), w = pool.normal({vocab, dim}, 2.0 / std::sqrt(static_cast<double>(dim)));
  const Tensor targets = pool.random_ints({tokens}, vocab), grad_scale = pool.zeros(DType::kF64, {1});
  for (int64_t t = 2; t < tokens; t += 5) set(targets, t, -1);
  set(grad_scale, 0, 0.25);
  return {x,
          w,
          targets,
          grad_scale,
          pool.full({tokens}, NAN),
          pool.full({tokens, dim}, NAN),
          pool.normal({vocab, dim}),
          pool.zeros(DType::kI32, {tokens}),
          /*accumulate_dw=*/true};
}

class CudaHeadLoss : public CudaTest {
 protected:
  // Logits of a chunk in fp32 and what is computed of them: 126 MiB of 1,200 tokens and 20,480 ids.
  CudaHeadLoss() : CudaTest(/*num_sms=*/0, /*scratch_bytes=*/int64_t{160} << 20) {}

  HeadLoss up(const HeadLoss& args, DType act) {
    const auto copy = [&](Tensor x, DType dtype) { return x.defined() ? CudaTest::up(x, dtype) : Tensor(); };
    return {copy(args.x, act),
            copy(args.w, act),
            copy(args.targets, DType::kI32),
            copy(args.grad_scale, DType::kF64),
            copy(args.losses, DType::kF32),
            copy(args.dx, act),
            copy(args.dw, DType::kF32),
            copy(args.predictions, DType::kI32),
            args.accumulate_dw,
            copy(args.weights, DType::kF32),
            copy(args.z_losses, DType::kF32),
            copy(args.z_scale, DType::kF64)};
  }
};

// What a token's largest logit may be off by when it is rounded to BF16.
std::vector<double> logit_errors(Tensor x, Tensor w) {
  const int64_t dim = x.dim(1);
  std::vector<double> errors;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const float* const token = x[t].data<float>();
    float largest = 0;
    for (int64_t v = 0; v < w.dim(0); ++v) {
      largest = std::max(largest, std::abs(std::inner_product(token, token + dim, w[v].data<float>(), 0.0F)));
    }
    errors.push_back(0x1p-8 * static_cast<double>(largest));  // half a unit in the last of 8 bits
  }
  return errors;
}

// F32: logits are good to about 2e-6, which is the relative error of their exponentials. BF16: logits are rounded, so a
// loss is off by at most twice what the largest logit is, and a probability by as much of itself; their gradients are
// rounded again (2^-8 of each value), and so is dx.
TEST_F(CudaHeadLoss, MatchesTheCpu) {
  for (const HeadShape& shape : kShapes) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(
          fmt::format("{} tokens of {}, vocabulary {}, {}", shape.tokens, shape.dim, shape.vocab, dtype_name(act)));
      TensorPool pool(DType::kF32);
      const HeadLoss args = make_head_loss(pool, shape);
      rounded(args.x, act);
      rounded(args.w, act);
      const HeadLoss device = up(args, act);
      run([&](Ops& ops) { ops.head_loss(device); });
      cpu().head_loss(args);
      double tolerance = 3e-5;
      if (act == DType::kF32) {
        EXPECT_TRUE(near(down(device.losses), args.losses, 1e-3));
      } else {
        const std::vector<double> errors = logit_errors(args.x, args.w), losses = values(down(device.losses));
        for (int64_t t = 0; t < shape.tokens; ++t) {
          const auto token = static_cast<size_t>(t);
          EXPECT_LE(std::abs(losses[token] - get(args.losses, t)), 2 * errors[token] + 1e-4) << "token " << t;
        }
        tolerance = 8e-3;
        if (shape.tokens > 0) tolerance += 2 * *std::max_element(errors.begin(), errors.end());
      }
      EXPECT_LE(worst_error(down(device.dw), args.dw), tolerance) << "dw";
      EXPECT_LE(worst_error(down(device.dx), args.dx), tolerance) << "dx";
    }
  }
}

// F32: the errors of MatchesTheCpu, times weights of up to about 4 and, of z losses, times twice a log of up to
// about 16.
TEST_F(CudaHeadLoss, WeightsAndZLossesMatchTheCpu) {
  for (const HeadShape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("{} tokens of {}, vocabulary {}", shape.tokens, shape.dim, shape.vocab));
    TensorPool pool(DType::kF32);
    HeadLoss args = make_head_loss(pool, shape);
    args.weights = pool.normal({shape.tokens});
    args.z_losses = pool.full({shape.tokens}, NAN);
    args.z_scale = pool.zeros(DType::kF64, {1});
    set(args.z_scale, 0, 0.125);
    const HeadLoss device = up(args, DType::kF32);
    run([&](Ops& ops) { ops.head_loss(device); });
    cpu().head_loss(args);
    EXPECT_TRUE(near(down(device.losses), args.losses, 4e-3));
    EXPECT_TRUE(near(down(device.z_losses), args.z_losses, 4e-3));
    EXPECT_LE(worst_error(down(device.dw), args.dw), 5e-4) << "dw";
    EXPECT_LE(worst_error(down(device.dx), args.dx), 5e-4) << "dx";
  }
}

TEST_F(CudaHeadLoss, TermsThatChangeNothingKeepTheBits) {
  for (const DType act : {DType::kF32, DType::kBF16}) {
    TensorPool pool(DType::kF32);
    HeadLoss args = make_head_loss(pool, {600, 64, 5003});
    const HeadLoss plain = up(args, act);
    args.weights = pool.full({600}, 1.0);
    args.z_losses = pool.full({600}, NAN);
    args.z_scale = pool.zeros(DType::kF64, {1});
    const HeadLoss terms = up(args, act);
    run([&](Ops& ops) { ops.head_loss(plain); });
    run([&](Ops& ops) { ops.head_loss(terms); });
    EXPECT_TRUE(same_bits(down(terms.losses), down(plain.losses)));
    EXPECT_TRUE(same_bits(down(terms.dx), down(plain.dx)));
    EXPECT_TRUE(same_bits(down(terms.dw), down(plain.dw)));
  }
}

// Doubled rows of the weight make equal logits; the lower is the prediction. With and without gradients, which then may
// not be needed at all.
TEST_F(CudaHeadLoss, PredictionsAreTheLowestOfTheLargest) {
  for (const HeadShape& shape : {HeadShape{1, 3, 2}, {70, 5, 38}, {600, 3, 66}, {40, 16, 8192}, {1200, 16, 20'480}}) {
    for (const bool want_gradient : {true, false}) {
      SCOPED_TRACE(fmt::format("{} tokens, vocabulary {}, gradient {}", shape.tokens, shape.vocab, want_gradient));
      TensorPool pool(DType::kF32);
      HeadLoss args = make_head_loss(pool, shape);
      const int64_t half = args.w.num_elements() / 2;
      // Small integers: logits are exact in any order of summing.
      for (int64_t i = 0; i < half; ++i) {
        set(args.w, i, std::round(2 * get(args.w, i)));
        set(args.w, half + i, get(args.w, i));
      }
      for (int64_t i = 0; i < args.x.num_elements(); ++i) set(args.x, i, std::round(2 * get(args.x, i)));
      if (!want_gradient) args.dx = args.dw = args.grad_scale = Tensor();
      const HeadLoss device = up(args, DType::kBF16);
      run([&](Ops& ops) { ops.head_loss(device); });
      cpu().head_loss(args);
      EXPECT_TRUE(same_bits(down(device.predictions), args.predictions));
      EXPECT_TRUE(near(down(device.losses), args.losses, 1e-3));
    }
  }
}

// Without gradients logits are F32, with them BF16: their rounding goes either way, and the mean loss hardly moves.
TEST_F(CudaHeadLoss, TheMeanLossOfRoundedLogits) {
  TensorPool pool(DType::kF32);
  HeadLoss args = make_head_loss(pool, {700, 256, 8192});
  rounded(args.x, DType::kBF16);
  rounded(args.w, DType::kBF16);
  const HeadLoss trained = up(args, DType::kBF16);
  args.dx = args.dw = args.grad_scale = Tensor();
  const HeadLoss evaluated = up(args, DType::kBF16);
  run([&](Ops& ops) { ops.head_loss(trained); });
  run([&](Ops& ops) { ops.head_loss(evaluated); });
  cpu().head_loss(args);
  EXPECT_TRUE(near(down(evaluated.losses), args.losses, 1e-3));
  const std::vector<double> losses = values(down(trained.losses)), exact = values(down(evaluated.losses));
  double sum = 0, exact_sum = 0;
  for (size_t t = 0; t < losses.size(); ++t) sum += losses[t], exact_sum += exact[t];
  // A logit of 2 is off by some 0.002, the mean of 560 such by 1e-4; seen four times that wide.
  EXPECT_LE(std::abs(sum - exact_sum) / static_cast<double>(losses.size()), 4e-4);
  EXPECT_NE(sum, exact_sum);
}

TEST_F(CudaHeadLoss, NoTargetNoGradient) {
  TensorPool pool(DType::kF32);
  HeadLoss args = make_head_loss(pool, {9, 16, 40});
  args.targets = pool.ints({9}, std::vector<double>(9, -1));
  args.dw = pool.zeros(args.dw.shape());
  const HeadLoss device = up(args, DType::kBF16);
  run([&](Ops& ops) { ops.head_loss(device); });
  for (const Tensor& x : {device.losses, device.dx, device.dw}) {
    for (const double value : values(down(x))) EXPECT_EQ(value, 0.0);
  }
}

TEST_F(CudaHeadLoss, SameBitsEveryTime) {
  TensorPool pool(DType::kF32);
  const HeadLoss args = make_head_loss(pool, {600, 64, 5003});
  const HeadLoss first = up(args, DType::kBF16), again = up(args, DType::kBF16);
  run([&](Ops& ops) { ops.head_loss(first); });
  run([&](Ops& ops) { ops.head_loss(again); });
  EXPECT_TRUE(same_bits(down(again.losses), down(first.losses)));
  EXPECT_TRUE(same_bits(down(again.dx), down(first.dx)));
  EXPECT_TRUE(same_bits(down(again.dw), down(first.dw)));
}

TEST_F(CudaHeadLoss, TargetBeyondTheVocabularyMakesNaN) {
  TensorPool pool(DType::kF32);
  HeadLoss args = make_head_loss(pool, {2, 3, 8});
  args.targets = pool.ints({2}, {8, 1});
  const HeadLoss device = up(args, DType::kF32);
  run([&](Ops& ops) { ops.head_loss(device); });
  const std::vector<double> losses = values(down(device.losses));
  EXPECT_TRUE(std::isnan(losses[0]));
  EXPECT_TRUE(std::isfinite(losses[1]));
}

}  // namespace
}  // namespace nmoe::test
