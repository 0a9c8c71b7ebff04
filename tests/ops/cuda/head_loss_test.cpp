// The fused head on the GPU against the CPU's, over odd and even vocabularies, one as large as models have, and more
// tokens than a chunk. Needs a GPU: label gpu.

#include "ops/cuda/cuda_test.h"
#include "ops/log_sum.h"

namespace nmoe::test {
namespace {

struct HeadShape {
  int64_t tokens, dim, vocab;
};
constexpr HeadShape kShapes[] = {
    {0, 3, 5},
    {1, 3, 2},
    {7, 5, 37},
    {600, 33, 1030},
    {16'500, 3, 8},
    {2, 8, 100'003},
    // Widths in eights: in BF16 on Hopper logits do not reach memory. Of several steps of the product, the last of
    // which is no whole one, and of several groups of tiles of rows, too.
    {65, 16, 1024},
    {3, 16, 201'088},
    {1200, 16, 20'480},
    {600, 64, 5008},
    {9000, 200, 520},
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
  // Logits in two parts of 640 MiB at most, and gradients: 1.1 GiB of 1,400 tokens and 163,840 ids.
  CudaHeadLoss() : CudaTest(/*num_sms=*/0, /*scratch_bytes=*/int64_t{1280} << 20) {}

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

// Logits are good to about 2e-6, which is the relative error of their exponentials. BF16: their gradients are rounded
// (2^-8 of each value), and so is dx.
TEST_F(CudaHeadLoss, MatchesTheCpu) {
  for (const HeadShape& shape : kShapes) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(
          fmt::format("{} tokens of {}, vocabulary {}, {}", shape.tokens, shape.dim, shape.vocab, dtype_name(act)));
      const ArenaScope scope(tensors_);
      TensorPool pool(DType::kF32);
      const HeadLoss args = make_head_loss(pool, shape);
      rounded(args.x, act);
      rounded(args.w, act);
      const HeadLoss device = up(args, act);
      run([&](Ops& ops) { ops.head_loss(device); });
      cpu().head_loss(args);
      EXPECT_TRUE(near(down(device.losses), args.losses, 1e-3));
      const double tolerance = act == DType::kF32 ? 3e-5 : 8e-3;
      EXPECT_LE(worst_error(down(device.dw), args.dw), tolerance) << "dw";
      EXPECT_LE(worst_error(down(device.dx), args.dx), tolerance) << "dx";
    }
  }
}

// F32: the errors of MatchesTheCpu, times weights of up to about 4 and, of z losses, times twice a log of up to
// about 16. BF16: relative to the largest they are MatchesTheCpu's.
TEST_F(CudaHeadLoss, WeightsAndZLossesMatchTheCpu) {
  for (const HeadShape& shape : kShapes) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(
          fmt::format("{} tokens of {}, vocabulary {}, {}", shape.tokens, shape.dim, shape.vocab, dtype_name(act)));
      const ArenaScope scope(tensors_);
      TensorPool pool(DType::kF32);
      HeadLoss args = make_head_loss(pool, shape);
      rounded(args.x, act);
      rounded(args.w, act);
      args.weights = pool.normal({shape.tokens});
      args.z_losses = pool.full({shape.tokens}, NAN);
      args.z_scale = pool.zeros(DType::kF64, {1});
      set(args.z_scale, 0, 0.125);
      const HeadLoss device = up(args, act);
      run([&](Ops& ops) { ops.head_loss(device); });
      cpu().head_loss(args);
      EXPECT_TRUE(near(down(device.losses), args.losses, 4e-3));
      EXPECT_TRUE(near(down(device.z_losses), args.z_losses, 4e-3));
      const double tolerance = act == DType::kF32 ? 5e-4 : 8e-3;
      EXPECT_LE(worst_error(down(device.dw), args.dw), tolerance) << "dw";
      EXPECT_LE(worst_error(down(device.dx), args.dx), tolerance) << "dx";
    }
  }
}

TEST_F(CudaHeadLoss, TermsThatChangeNothingKeepTheBits) {
  for (const int64_t vocab : {5003, 5008}) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("vocabulary {}, {}", vocab, dtype_name(act)));
      TensorPool pool(DType::kF32);
      HeadLoss args = make_head_loss(pool, {600, 64, vocab});
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

// With gradients, in chunks of gradients and parts of logits, without, and as generation has them of single rows, which
// are the same logits: losses are the same to the bit, and log-probabilities the negative ones. Vocabularies in eights
// and not: logits that stay on the chip, and logits in memory.
TEST_F(CudaHeadLoss, OneLogSumInTrainingAndGeneration) {
  for (const HeadShape& shape : {HeadShape{700, 64, 8192}, {300, 64, 5003}, {1400, 32, 50'304}, {1400, 64, 163'840}}) {
    SCOPED_TRACE(fmt::format("{} tokens of {}, vocabulary {}", shape.tokens, shape.dim, shape.vocab));
    const ArenaScope of_shape(tensors_);
    TensorPool pool(DType::kF32);
    const HeadLoss args = make_head_loss(pool, shape);
    if (shape.vocab % 8 != 0) {  // exact, whatever product there is for such rows
      for (float& value : args.x.span<float>()) value = std::round(value);
      for (float& value : args.w.span<float>()) value = std::round(4 * value);
    }
    const HeadLoss trained = up(args, DType::kBF16);
    HeadLoss evaluated = trained;
    evaluated.dx = evaluated.dw = evaluated.grad_scale = Tensor();
    evaluated.losses = tensors_.allocate(DType::kF32, {shape.tokens});
    run([&](Ops& ops) { ops.head_loss(trained); });
    run([&](Ops& ops) { ops.head_loss(evaluated); });
    EXPECT_TRUE(same_bits(down(evaluated.losses), down(trained.losses)));
    const Tensor losses = down(trained.losses);
    Ops& generating = device_->ops(Arithmetic::kBatchInvariant);
    for (const int64_t count : {1, 7, 16, 256}) {
      const ArenaScope of_part(tensors_);
      const int64_t first = shape.tokens - count - 3;
      const Tensor logits = tensors_.allocate(DType::kF32, {count, shape.vocab});
      const Tensor sums = tensors_.allocate(DType::kF32, {count, 3});
      const auto work = [&] {
        generating.linear_forward(
            {.x = trained.x.rows(first, first + count), .w = trained.w, .y = logits, .addend = {}});
        generating.logit_sums({.logits = logits, .sums = sums});
      };
      work();
      const Tensor direct = down(sums);
      gpu().fill({.x = sums, .value = NAN});
      const auto recording = device_->record(work);
      recording->run();
      EXPECT_TRUE(same_bits(down(sums), direct)) << "recorded";
      for (int64_t row = 0; row < count; ++row) {
        const auto target = static_cast<int64_t>(get(args.targets, first + row));
        if (target < 0) continue;
        float logit = 0;
        device_->download(&logit, Tensor(logits[row].data<float>() + target, DType::kF32, {1}));
        const float* const sum = direct[row].data<float>();
        const LogSum log_sum{.highest = sum[0], .sum = sum[1], .log = sum[2]};
        ASSERT_EQ(log_sum.loss(logit), losses.data<float>()[first + row]) << "row " << row << " of " << count;
      }
    }
  }
}

// Sums of logits against the CPU's; what is not finite shows alike.
TEST_F(CudaHeadLoss, SumsOfLogitsAreThoseOfTheCpu) {
  for (const int64_t vocab : {1, 5, 1030, 8192, 50'304, 100'003}) {
    TensorPool pool(DType::kF32);
    const Tensor logits = pool.normal({5, vocab}, 3.0), sums = pool.zeros({5, 3});
    set(logits, vocab, NAN);
    set(logits, 3 * vocab - 1, INFINITY);
    const Tensor device_logits = CudaTest::up(logits), device_sums = CudaTest::up(pool.full({5, 3}, 7));
    gpu().logit_sums({.logits = device_logits, .sums = device_sums});
    const std::vector<double> given = values(logits);
    cpu().logit_sums({.logits = logits, .sums = sums});
    const Tensor made = down(device_sums);
    for (const int64_t row : {1, 2}) EXPECT_TRUE(std::isnan(get(made, row * 3 + 2))) << vocab;
    for (const int64_t row : {0, 3, 4}) {
      EXPECT_EQ(get(made, row * 3), get(sums, row * 3)) << vocab;
      double sum = 0.0;
      for (int64_t i = row * vocab; i < (row + 1) * vocab; ++i) {
        sum += std::exp(given[static_cast<size_t>(i)] - get(sums, row * 3));
      }
      EXPECT_NEAR(get(made, row * 3 + 2), std::log(sum), 2e-6 * std::max(1.0, std::log(sum))) << vocab;
    }
  }
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
  for (const int64_t vocab : {5003, 5008}) {
    SCOPED_TRACE(fmt::format("vocabulary {}", vocab));
    TensorPool pool(DType::kF32);
    const HeadLoss args = make_head_loss(pool, {600, 64, vocab});
    const HeadLoss first = up(args, DType::kBF16), again = up(args, DType::kBF16);
    run([&](Ops& ops) { ops.head_loss(first); });
    run([&](Ops& ops) { ops.head_loss(again); });
    EXPECT_TRUE(same_bits(down(again.losses), down(first.losses)));
    EXPECT_TRUE(same_bits(down(again.dx), down(first.dx)));
    EXPECT_TRUE(same_bits(down(again.dw), down(first.dw)));
  }
}

TEST_F(CudaHeadLoss, TargetBeyondTheVocabularyMakesNaN) {
  for (const HeadShape& shape : {HeadShape{2, 3, 8}, {2, 8, 8}, {2, 64, 5008}}) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("{} wide, vocabulary {}, {}", shape.dim, shape.vocab, dtype_name(act)));
      TensorPool pool(DType::kF32);
      HeadLoss args = make_head_loss(pool, shape);
      args.targets = pool.ints({2}, {static_cast<double>(shape.vocab), 1});
      const HeadLoss device = up(args, act);
      run([&](Ops& ops) { ops.head_loss(device); });
      const std::vector<double> losses = values(down(device.losses));
      EXPECT_TRUE(std::isnan(losses[0]));
      EXPECT_TRUE(std::isfinite(losses[1]));
    }
  }
}

}  // namespace
}  // namespace nmoe::test
